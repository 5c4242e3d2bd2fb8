/** The times of each line of the cell in a time range (analyses/lines.py). */

import {backward_ops, calling_lines, cell_lines, INSIDE, kept_rows, OUTSIDE} from "./callers"
import type {Window} from "./columns"
import {gpu_rows} from "./device_time"
import type {LineTable} from "./header"
import {covered, union, type Intervals} from "./intervals"
import {nest_among, self_times_among, type Among} from "./nest"
import {listed_rows, memory_rows} from "./op_table"
import {NONE, type Store} from "./store"

/** Times in ns. */
export type LineRow = {
  /** index into the cells of the header's lines */
  cell: number
  /** number of the line, as the editor counts */
  line: number
  code: string
  /** executions begun */
  calls: number
  /** time in which any of them was open */
  wall: number
  /** the same without the lines that ran within it */
  self: number
  /** of that, the time of ops and runtime calls */
  cpu_self: number
  /** GPU time that it launched itself */
  device: number
  /** time of the backward ops whose forward op ran in it, and of what they launched */
  backward_cpu: number
  backward_device: number
  /** waited for the GPU */
  wait: number
  /** in bytes, as `freed`, which is not subtracted */
  allocated: number
  freed: number
  /** ran more often than is recorded */
  is_cut: boolean
  /** indices of the lines whose further runs count for it */
  others: number[]
}

export type LineValue = Exclude<keyof LineRow, "cell" | "line" | "code" | "is_cut" | "others">
type Add = (line: number, key: LineValue, value: number) => void

/** Returns a row for each line, ran or not, in the order of the header's lines. */
export function line_rows(store: Store, window: Window): LineRow[] {
  const table = store.header.lines
  if (table == null) {
    return []
  }
  const rows = table.lines.map(([cell, line, code]): LineRow => ({
    cell, line, code, calls: 0, wall: 0, self: 0, cpu_self: 0, device: 0, backward_cpu: 0, backward_device: 0, wait: 0,
    allocated: 0, freed: 0,
    is_cut: false, others: [],
  }))
  for (const [line, is_cut, others] of table.incomplete) {
    Object.assign(rows[line], {is_cut: is_cut == 1, others})
  }
  const owners = new Owners(store, kept_rows(store, window).state)
  const add: Add = (line, key, value) => {
    if (line >= 0) {
      rows[line][key] += value
    }
  }
  add_lines(store, window, table, owners, add)
  add_ops(store, window, owners, add)
  add_gpu(store, window, owners, add)
  add_waits(store, window, table, owners, add)
  for (const row of memory_rows(store)) {
    if (owners.kept[row] == INSIDE) {
      add(owners.line(row), "allocated", Math.max(store.bytes(row), 0))
      add(owners.line(row), "freed", Math.max(-store.bytes(row), 0))
    }
  }
  return rows
}

/** Returns what a line's number is: at least (≥), at most (≤) or about (≈) this much; "" where it is exact (views/page_rows.py). */
export function sign_of({is_cut, others}: LineRow, value: LineValue): "" | "≥" | "≤" | "≈" {
  const has_others = others.length > 0 && value != "calls" && value != "wall"
  return is_cut ? has_others ? "≈" : "≥" : has_others ? "≤" : ""
}

/** Lines that a sentence names, at most. */
const MOST_NAMED = 5

/** Says why a line's numbers are not exact. */
export function why_inexact({limit, cells, lines}: LineTable, {is_cut, others, cell}: LineRow): string {
  const name = (line: number): string => lines[line][0] == cell ? String(lines[line][1]) : `${lines[line][1]} of ${cells[lines[line][0]].name}`
  const named = others.slice(0, MOST_NAMED).map(name).join(", ") + (others.length > MOST_NAMED ? " and others" : "")
  const runs = limit <= 0 ? "Later runs" : `Runs after the first ${limit.toLocaleString("en")}`
  return [
    ...is_cut ? [`${runs} were not recorded one by one; their time counts for the line around them.`] : [],
    ...others.length == 0 ? [] : [`Includes further runs of line${others.length == 1 ? "" : "s"} ${named}.`],
  ].join(" ")
}

/** Returns the index of the line (into the header's lines) in which a row ran or was launched, -1 for none. */
export function line_of_row(store: Store, row: number): number {
  return whole_owners(store)?.line(store.on_gpu[row] == 1 ? store.owner[row] : row) ?? NONE
}

/** Returns the row of the cell line in which a row ran or was launched, and that of its forward op; -1 for none. */
export function line_owners(store: Store, row: number): {line: number, forward: number} {
  const cause = store.on_gpu[row] == 1 ? store.owner[row] : row
  const owners = whole_owners(store)
  return {line: owners?.line_row(cause) ?? NONE, forward: owners?.forward_row(cause) ?? NONE}
}

/** Returns all rows that are executions of a line, or pieces of them. */
export function line_instances(store: Store, line: number): Int32Array {
  const labels = store.header.lines?.labels.filter(([, of]) => of == line) ?? []
  return Int32Array.from(labels.flatMap(([label]) => Array.from(store.instances(label)))).sort()
}

/** Null where no cell line was recorded. */
function whole_owners(store: Store): Owners | null {
  return store.lazily("line owners", () =>
    cell_lines(store).includes(1) ? new Owners(store, new Uint8Array(store.rows).fill(INSIDE)) : null)
}

/** The line in which each CPU row ran and that of its forward op, among the rows that a window keeps. */
class Owners {
  private readonly around: Int32Array
  private readonly op_before: Int32Array
  private readonly in_backward: Uint8Array
  private readonly callers: Int32Array | null
  private readonly line_of_label: Int32Array

  constructor(private readonly store: Store, readonly kept: Uint8Array) {
    this.line_of_label = lines_of_labels(store)
    this.callers = calling_lines(store)
    this.around = new Int32Array(store.rows)
    this.op_before = new Int32Array(store.rows)
    this.in_backward = new Uint8Array(store.rows)
    const is_line = cell_lines(store)
    const marked = backward_ops(store)
    const in_node = new Uint8Array(store.rows)
    let latest = NONE // the last backward op with a forward op that lies in no other
    for (let row = 0; row < store.rows; row++) {
      const above = store.parent[row]
      const counts = kept[row] != OUTSIDE
      const forward = counts ? store.forward[row] : NONE
      this.around[row] = counts && is_line[row] == 1 ? row : above < 0 ? NONE : this.around[above]
      this.op_before[row] = forward >= 0 ? forward : above < 0 ? NONE : this.op_before[above]
      this.in_backward[row] = counts && marked[row] == 1 ? 1 : above < 0 ? 0 : this.in_backward[above]
      const is_node = forward >= 0 || counts && marked[row] == 1
      const is_inside = above >= 0 && in_node[above] == 1
      in_node[row] = is_node || is_inside ? 1 : 0
      if (is_node && !is_inside) {
        if (forward >= 0) {
          latest = row
        } else if (latest >= 0 && store.track[latest] == store.track[row] && this.line_row(latest) == this.line_row(row)) {
          // The engine's own work is part of the backward op before it, in the same call.
          this.op_before[row] = this.op_before[latest]
        }
      }
    }
  }

  /** Returns the index of the line in which a CPU row ran, -1 for none. */
  line(row: number): number {
    return this.index(this.line_row(row))
  }

  /** Returns the index of the line in which the forward op of a CPU row of the backward pass ran, -1 for none. */
  forward_line(row: number): number {
    return this.index(this.forward_row(row))
  }

  line_row(row: number): number {
    if (row < 0 || this.around[row] >= 0) {
      return row < 0 ? NONE : this.around[row]
    }
    return this.in_backward[row] == 1 ? this.callers?.[row] ?? NONE : NONE
  }

  forward_row(row: number): number {
    return row < 0 ? NONE : this.line_row(this.op_before[row])
  }

  private index(row: number): number {
    return row < 0 ? NONE : this.line_of_label[this.store.label[row]]
  }
}

function lines_of_labels(store: Store): Int32Array {
  const line_of = new Int32Array(store.header.label.length).fill(NONE)
  for (const [label, line] of store.header.lines?.labels ?? []) {
    line_of[label] = line
  }
  return line_of
}

function add_lines(store: Store, window: Window, {labels}: LineTable, {kept}: Owners, add: Add): void {
  const self = self_times_among(store, nesting(store, "lines", () => cell_lines(store)), window)
  for (const [label, line, is_later] of labels) {
    for (const row of store.instances(label)) {
      add(line, "self", store.ns(self[row]))
      add(line, "calls", kept[row] == INSIDE && is_later == 0 ? store.count[row] : 0)
    }
  }
  const open = store.lazily("open lines", () => new Map(labels.map(([, line]) => [line, covered_by(store, line_instances(store, line))])))
  for (const [line, intervals] of open) {
    add(line, "wall", store.ns(covered(intervals, window.start, window.end)))
  }
}

function covered_by(store: Store, rows: ArrayLike<number>): Intervals {
  return union(store.ts, store.end, Array.from(rows).sort((a, b) => store.ts[a] - store.ts[b]))
}

function add_ops(store: Store, window: Window, owners: Owners, add: Add): void {
  const is_op = timed_ops(store)
  const with_lines = nesting(store, "lines and ops", () => cell_lines(store).map((is_line, row) => is_line | is_op[row]))
  const self = self_times_among(store, with_lines, window)
  const alone = self_times_among(store, nesting(store, "ops alone", () => is_op), window)
  alone.forEach((time, row) => {
    if (is_op[row] == 1 && time != 0) {
      add(owners.line(row), "cpu_self", store.ns(self[row]))
      add(owners.forward_line(row), "backward_cpu", store.ns(time))
    }
  })
}

/** Returns the rows of a mask nested among themselves; `name` is the mask's in the cache. */
function nesting(store: Store, name: string, mask: () => Uint8Array): Among {
  return store.lazily(`${name} nested`, () => nest_among(store, mask()))
}

/** Returns a mask of ops and runtime calls: the CPU rows that an op table lists, without annotations. */
function timed_ops(store: Store): Uint8Array {
  return store.lazily("timed ops", () => {
    const annotation = store.by_label(store.category_mask(["user_annotation"]))
    return listed_rows(store).map((is_listed, row) => is_listed & ~annotation[row])
  })
}

function add_gpu(store: Store, window: Window, owners: Owners, add: Add): void {
  for (const row of gpu_rows(store)) {
    if (owners.kept[row] == INSIDE) {
      const time = store.ns(store.time_inside(row, window))
      add(owners.line(store.owner[row]), "device", time)
      add(owners.forward_line(store.owner[row]), "backward_device", time)
    }
  }
}

function add_waits(store: Store, window: Window, table: LineTable, owners: Owners, add: Add): void {
  const {kept} = owners
  const copied = (row: number): boolean =>
    store.launched(row).some((gpu) => kept[gpu] == INSIDE && store.category(gpu) == "gpu_memcpy")
  const by_line = table.lines.map((): number[] => [])
  const add_wait = (row: number): void => {
    const line = kept[row] == INSIDE ? owners.line(row) : NONE
    by_line[line]?.push(row)
  }
  table.waits.forEach((label) => store.instances(label).forEach(add_wait))
  table.copy_waits.forEach((label) => store.instances(label).filter(copied).forEach(add_wait))
  by_line.forEach((rows, line) => add(line, "wait", store.ns(covered(covered_by(store, rows), window.start, window.end))))
}
