/** The op table of a time range: events are cut at its edges, GPU time goes to the op that caused it. */

import {INSIDE, kept_rows, OUTSIDE} from "./callers"
import {caused_device_times, gpu_rows, subtree_sums} from "./device_time"
import {merged_name} from "./names"
import {add_self_times, nest_rows, type Nesting} from "./nest"
import {GPU_CATEGORIES, NONE, rows_equal_to, type Store, type Window} from "./store"

export type Grouping = "name" | "name_shape" | "category"

/** Times in ns. */
export type OpRow = {
  /** identifies the row among those of its grouping, in any window */
  key: string
  /** index into `header.label` of one of its slices */
  label: number
  /** index into `header.shapes`, -1 where unknown or not grouped by */
  shape: number
  name: string
  category: string
  calls: number
  cpu_total: number
  cpu_self: number
  /** GPU time caused by the op and by all that it called */
  device_total: number
  device_self: number
  /** bytes allocated less released while the op was the innermost one of its thread */
  cpu_self_memory: number
  device_self_memory: number
  flops: number
}

/** Which of the optional numbers the record has. */
export type Recorded = {cpu_self_memory: boolean, device_self_memory: boolean, flops: boolean}

type Group = Pick<OpRow, "key" | "label" | "shape" | "name" | "category">
type Groups = {groups: Group[], group_of: Int32Array}

/** Self time of all rows in ns; null where nothing of that side was recorded. */
export type SelfTimes = {cpu: number | null, gpu: number | null}

const MEMORY_EVENT = "[memory]"
const GPU_TRACKS = ["gpu", "copy"]

/** Returns the rows of the op table, in no order; those without calls and time are left out. */
export function op_table(store: Store, window: Window, grouping: Grouping): OpRow[] {
  const {groups, group_of} = grouped(store, grouping)
  const rows = groups.map((group): OpRow => ({
    ...group, calls: 0, cpu_total: 0, cpu_self: 0, device_total: 0, device_self: 0, cpu_self_memory: 0, device_self_memory: 0, flops: 0,
  }))
  const kept = kept_rows(store, window)
  const group_row = (row: number): OpRow => rows[group_of[row]]
  add_ops(store, window, kept, group_row)
  add_gpu_rows(store, window, kept, group_row)
  return rows.filter((row) => row.calls != 0 || TIMES.some((time) => row[time] != 0))
}

const TIMES = ["cpu_total", "cpu_self", "device_total", "device_self"] as const

/** Returns the totals that torch writes below its table. The GPU's is that of GPU work alone: its ops have that time once more. */
export function self_times(store: Store, rows: OpRow[]): SelfTimes {
  const sum = (some: OpRow[], time: (row: OpRow) => number): number => some.reduce((all, row) => all + time(row), 0)
  const has = (...kinds: string[]): boolean => rows.length > 0 && store.header.tracks.some(({kind}) => kinds.includes(kind))
  const work = rows.filter(({category}) => GPU_CATEGORIES.includes(category))
  return {
    cpu: has("cpu") ? sum(rows, (row) => row.cpu_self) : null,
    gpu: has(...GPU_TRACKS) ? sum(work, (row) => row.device_self) : null,
  }
}

/** Adds up the ops of the CPU; `group_row` returns the row of the table to which a slice belongs. */
function add_ops(store: Store, window: Window, kept: Uint8Array, group_row: (row: number) => OpRow): void {
  const ops = op_rows(store, kept)
  const device_self = caused_device_times(store, window, ops.index)
  const device_total = subtree_sums(device_self, ops.parent)
  const cpu_self = self_times_among(store, window, "listed", () => listed_rows(store))
  for (let row = 0; row < store.rows; row++) {
    if (ops.is_op[row] == 0) {
      continue
    }
    const group = group_row(ops.host[row])
    group.cpu_self += store.ns(cpu_self[row])
    group.device_self += store.ns(device_self[row])
    if (ops.repeat[row] == 0) {
      if (kept[row] == INSIDE) {
        group.calls += store.count[row]
        group.flops += store.flops(row)
      }
      group.cpu_total += store.ns(store.time_inside(row, window))
      group.device_total += store.ns(device_total[row])
    }
  }
  for (const row of memory_rows(store)) {
    if (kept[row] == INSIDE) {
      const op = ops.index[row]
      const group = group_row(op == NONE ? row : ops.host[op])
      group.cpu_self_memory += cpu_bytes(store, row)
      group.device_self_memory += store.device_bytes(row)
      if (op == NONE) {
        group.calls += store.count[row] // an allocation outside of any op, as in torch
      }
    }
  }
}

function add_gpu_rows(store: Store, window: Window, kept: Uint8Array, group_row: (row: number) => OpRow): void {
  for (const row of gpu_rows(store)) {
    if (kept[row] == INSIDE) {
      const time = store.ns(store.time_inside(row, window))
      const group = group_row(row)
      group.calls += store.count[row]
      group.device_self += time
      group.device_total += time
    }
  }
}

/** Returns which of the optional numbers are not zero all over the record. */
export function recorded(store: Store): Recorded {
  const memory = memory_rows(store)
  return {
    cpu_self_memory: memory.some((row) => cpu_bytes(store, row) != 0),
    device_self_memory: memory.some((row) => store.device_bytes(row) != 0),
    flops: store.ts.some((_, row) => store.flops(row) != 0),
  }
}

function cpu_bytes(store: Store, row: number): number {
  return store.bytes(row) - store.device_bytes(row)
}

export function memory_rows(store: Store): Int32Array {
  return store.lazily("memory_rows", () => {
    const labels = store.header.label.flatMap(([name], label) => store.header.names[name] == MEMORY_EVENT ? label : [])
    return Int32Array.from(labels.flatMap((label) => Array.from(store.instances(label)))).sort()
  })
}

/** Returns the slices of the whole record that a row of the op table stands for. */
export function op_row_instances(store: Store, grouping: Grouping, key: string): Int32Array {
  const {groups, group_of} = grouped(store, grouping)
  const wanted = groups.findIndex((group) => group.key == key)
  return wanted < 0 ? new Int32Array(0) : rows_equal_to(group_of, wanted)
}

/** Returns the keys of the op table's rows to which some slices belong; some slices it leaves out. */
export function op_row_keys(store: Store, grouping: Grouping, rows: Int32Array): Set<string> {
  const {groups, group_of} = grouped(store, grouping)
  const holds = new Uint8Array(groups.length)
  for (const row of rows) {
    holds[group_of[row]] = 1 // a write at NONE is none
  }
  return new Set(groups.flatMap(({key}, group) => holds[group] == 1 ? key : []))
}

/** Returns the groups and the group of each row, -1 for rows that are no part of an op table. */
function grouped(store: Store, grouping: Grouping): Groups {
  return store.lazily(`groups by ${grouping}`, () => {
    const groups: Group[] = []
    const index = new Map<string, number>()
    const shapes = grouping == "name_shape" ? store.header.shapes.length + 1 : 1
    const group_of_label = new Int32Array(store.header.label.length*shapes).fill(NONE)
    const group_of = new Int32Array(store.rows).fill(NONE)
    store.header.tracks.forEach(({kind}, track) => {
      for (let row = store.first_row[track]; row < store.first_row[track + 1]; row++) {
        if (kind == "cpu" || store.on_gpu[row] == 1) {
          const shape = shapes == 1 ? 0 : store.shape_of(row) + 1
          const at = store.label[row]*shapes + shape
          if (group_of_label[at] == NONE) {
            group_of_label[at] = index_of(group(store, row, grouping))
          }
          group_of[row] = group_of_label[at]
        }
      }
    })
    return {groups, group_of}

    function index_of(group: Group): number {
      if (!index.has(group.key)) {
        index.set(group.key, groups.push(group) - 1)
      }
      return index.get(group.key)!
    }
  })
}

function group(store: Store, row: number, grouping: Grouping): Group {
  const label = store.label[row]
  const category = store.category(row)
  if (grouping == "category") {
    return {key: category, label, shape: NONE, name: category, category}
  }
  const name = merged_name(store.name(row))
  const shape = grouping == "name_shape" ? store.shape_of(row) : NONE
  return {key: [category, name, shape].join("\n"), label, shape, name, category}
}

type OpRows = {
  /** 1 for rows that are counted */
  is_op: Uint8Array
  /** a counted row itself, else the nearest counted one around it, -1 for none */
  index: Int32Array
  /** nearest counted row around a counted one, -1 for none */
  parent: Int32Array
  /** 1 for a row that has its parent's name and is its only child: they count as one, as in torch */
  repeat: Uint8Array
  /** the counted row to whose line of the table a row adds: itself, for a repeat its parent's host */
  host: Int32Array
}

function op_rows(store: Store, kept: Uint8Array): OpRows {
  const is_op = listed_rows(store).map((is_listed, row) => kept[row] == OUTSIDE ? 0 : is_listed)
  const {index, parent} = nearest_ops(store, is_op)
  return {is_op, index, parent, ...repeats(store, is_op, parent)}
}

/** Returns for each row of a mask its self time (ticks) in the window among the mask's rows; `name` is the mask's in the cache. */
export function self_times_among(store: Store, window: Window, name: string, mask: () => Uint8Array): Float64Array {
  const self = new Float64Array(store.rows)
  for (const nesting of store.lazily(`${name} nestings`, () => nestings(store, mask()))) {
    const times = new Float64Array(nesting.rows.length)
    add_self_times(times, nesting, window.start, window.end, 0, times.length)
    times.forEach((time, i) => { self[nesting.rows[i]] = time })
  }
  return self
}

/** Returns a mask of the rows of CPU tracks, without those that never get a line in an op table. */
export function listed_rows(store: Store): Uint8Array {
  return store.lazily("listed", () => {
    const listed = store.by_label(Uint8Array.from(store.header.label, (_, label) => Number(!store.header.unlisted.includes(label))))
    store.header.tracks.forEach(({kind}, track) => {
      if (kind != "cpu") {
        listed.fill(0, store.first_row[track], store.first_row[track + 1])
      }
    })
    return listed
  })
}

/** Returns the rows of a mask on each track, nested among themselves: rows outside of it take no time away. */
function nestings(store: Store, mask: Uint8Array): (Nesting & {rows: Int32Array})[] {
  return store.header.tracks.map((_, track) => nest_rows(store.masked_rows(track, mask), store.ts, store.end))
}

function nearest_ops(store: Store, is_op: Uint8Array): Pick<OpRows, "index" | "parent"> {
  const index = new Int32Array(store.rows)
  const parent = new Int32Array(store.rows)
  for (let row = 0; row < store.rows; row++) {
    const above = store.parent[row]
    parent[row] = above < 0 ? NONE : index[above]
    index[row] = is_op[row] == 1 ? row : parent[row]
  }
  return {index, parent}
}

function repeats(store: Store, is_op: Uint8Array, parent: Int32Array): Pick<OpRows, "repeat" | "host"> {
  const children = new Uint32Array(store.rows)
  for (let row = 0; row < store.rows; row++) {
    if (is_op[row] == 1 && parent[row] >= 0) {
      children[parent[row]]++
    }
  }
  const repeat = new Uint8Array(store.rows)
  const host = new Int32Array(store.rows)
  for (let row = 0; row < store.rows; row++) {
    const above = parent[row]
    repeat[row] = Number(is_op[row] == 1 && above >= 0 && children[above] == 1 && same_name(store, row, above))
    host[row] = repeat[row] == 1 ? host[above] : row
  }
  return {repeat, host}
}

function same_name(store: Store, a: number, b: number): boolean {
  return store.header.label[store.label[a]][0] == store.header.label[store.label[b]][0]
}
