/** The op table of a time range: events are cut at its edges, GPU time goes to the op that caused it. */

import {INSIDE, kept_rows, OUTSIDE, type Kept} from "./callers"
import type {Window} from "./columns"
import {gpu_rows, subtree_sums} from "./device_time"
import {merged_name} from "./names"
import {nest_among, self_times_among} from "./nest"
import {GPU_CATEGORIES} from "./rows"
import {NONE, rows_equal_to, type Store} from "./store"

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

/** Self time of all rows in ns; null where nothing of that side was recorded. */
export type SelfTimes = {cpu: number | null, gpu: number | null}

const MEMORY_EVENT = "[memory]"
const GPU_TRACKS = ["gpu", "copy"]

type Group = Pick<OpRow, "key" | "label" | "shape" | "name" | "category">
type Groups = {groups: Group[], group_of: (row: number) => number}
type Quantity = Exclude<keyof OpRow, keyof Group>
type Sums = Record<Quantity, Float64Array>

/** Returns the rows of the op table, in no order; those without calls and time are left out. */
export function op_table(store: Store, window: Window, grouping: Grouping): OpRow[] {
  const {groups, group_of} = grouped(store, grouping)
  const sums = Object.fromEntries(QUANTITIES.map((name) => [name, new Float64Array(groups.length)])) as Sums
  const kept = kept_rows(store, window)
  add_ops(store, window, kept, group_of, sums)
  add_gpu_rows(store, window, kept, group_of, sums)
  const rows = groups.map((group, at): OpRow => {
    const row = {...group} as OpRow
    QUANTITIES.forEach((name) => { row[name] = TIMES.includes(name) ? store.ns(sums[name][at]) : sums[name][at] })
    return row
  })
  return rows.filter((row) => row.calls != 0 || TIMES.some((time) => row[time] != 0))
}

const TIMES: readonly Quantity[] = ["cpu_total", "cpu_self", "device_total", "device_self"]
const QUANTITIES: readonly Quantity[] = [...TIMES, "calls", "cpu_self_memory", "device_self_memory", "flops"]

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

/** Adds up the ops of the CPU, in ticks; `group_of` returns the row of the table to which a slice belongs. */
function add_ops(store: Store, window: Window, kept: Kept, group_of: Groups["group_of"], sums: Sums): void {
  const ops = op_rows(store, kept)
  const {device_self, device_total} = device_times(store, window, kept, ops)
  const among = store.lazily("listed nesting", () => nest_among(store, listed_rows(store)))
  const cpu_self = self_times_among(store, among, window)
  kept.rows.forEach((row, at) => {
    if (ops.index[at] != at) {
      return
    }
    const group = group_of(kept.rows[ops.host[at]])
    sums.cpu_self[group] += cpu_self[row]
    sums.device_self[group] += device_self[at]
    if (ops.host[at] == at) {
      if (kept.state[row] == INSIDE) {
        sums.calls[group] += store.count[row]
        sums.flops[group] += store.flops(row)
      }
      sums.cpu_total[group] += store.time_inside(row, window)
      sums.device_total[group] += device_total[at]
    }
  })
  for (const row of memory_rows(store)) {
    if (kept.state[row] == INSIDE) {
      const op = ops.index[ops.place[row]]
      const group = group_of(op == NONE ? row : kept.rows[ops.host[op]])
      sums.cpu_self_memory[group] += cpu_bytes(store, row)
      sums.device_self_memory[group] += store.device_bytes(row)
      if (op == NONE) {
        sums.calls[group] += store.count[row] // an allocation outside of any op, as in torch
      }
    }
  }
}

/** Returns for each kept row the GPU time (ticks) inside the window of the kernels and copies of its op, and with what lies within it. */
function device_times(store: Store, window: Window, {state}: Kept, {place, index, parent}: OpRows): Record<"device_self" | "device_total", Float64Array> {
  const device_self = new Float64Array(index.length)
  for (const row of gpu_rows(store)) {
    const op = state[row] == INSIDE ? store.op[row] : NONE
    if (op >= 0 && index[place[op]] >= 0) {
      device_self[index[place[op]]] += store.time_inside(row, window)
    }
  }
  return {device_self, device_total: subtree_sums(device_self, parent)}
}

function add_gpu_rows(store: Store, window: Window, {state}: Kept, group_of: Groups["group_of"], sums: Sums): void {
  for (const row of gpu_rows(store)) {
    if (state[row] == INSIDE) {
      const time = store.time_inside(row, window)
      const group = group_of(row)
      sums.calls[group] += store.count[row]
      sums.device_self[group] += time
      sums.device_total[group] += time
    }
  }
}

/** Returns which of the optional numbers are not zero all over the record. */
export function recorded(store: Store): Recorded {
  return store.lazily("recorded", () => {
    const memory = memory_rows(store)
    return {
      cpu_self_memory: memory.some((row) => cpu_bytes(store, row) != 0),
      device_self_memory: memory.some((row) => store.device_bytes(row) != 0),
      flops: store.flop_counts?.some((flops) => flops != 0) ?? false,
    }
  })
}

function cpu_bytes(store: Store, row: number): number {
  return store.bytes(row) - store.device_bytes(row)
}

export function memory_rows(store: Store): Int32Array {
  return store.lazily("memory_rows", () => {
    const {label, names} = store.header
    return rows_equal_to(store.by_label(Uint8Array.from(label, ([name]) => Number(names[name] == MEMORY_EVENT))), 1)
  })
}

/** Returns the slices of the whole record that a row of the op table stands for. */
export function op_row_instances(store: Store, grouping: Grouping, key: string): Int32Array {
  const {groups, group_of} = grouped(store, grouping)
  const wanted = groups.findIndex((group) => group.key == key)
  const rows = new Int32Array(store.rows)
  let count = 0
  for (let row = 0; wanted >= 0 && row < store.rows; row++) {
    if (group_of(row) == wanted) {
      rows[count++] = row
    }
  }
  return rows.slice(0, count)
}

/** Returns the keys of the op table's rows to which some slices belong; some slices it leaves out. */
export function op_row_keys(store: Store, grouping: Grouping, rows: Int32Array): Set<string> {
  const {groups, group_of} = grouped(store, grouping)
  const holds = new Uint8Array(groups.length)
  for (const row of rows) {
    holds[group_of(row)] = 1 // a write at NONE is none
  }
  return new Set(groups.flatMap(({key}, group) => holds[group] == 1 ? key : []))
}

/** Returns the groups and what returns the group of a row, -1 for rows that are no part of an op table. */
function grouped(store: Store, grouping: Grouping): Groups {
  return store.lazily(`groups by ${grouping}`, () => {
    const groups: Group[] = []
    const index = new Map<string, number>()
    const shapes = grouping == "name_shape" ? store.header.shapes.length + 1 : 1
    const group_at = new Int32Array(store.header.label.length*shapes).fill(NONE)
    const kind_of = (row: number): number => store.label[row]*shapes + (shapes == 1 ? 0 : store.shape_of(row) + 1)
    const on_cpu = Uint8Array.from(store.header.tracks, ({kind}) => Number(kind == "cpu"))
    const is_part = (row: number): boolean => on_cpu[store.track[row]] == 1 || store.on_gpu[row] == 1
    for (let row = 0; row < store.rows; row++) {
      if (is_part(row) && group_at[kind_of(row)] == NONE) {
        group_at[kind_of(row)] = index_of(group(store, row, grouping))
      }
    }
    return {groups, group_of: (row) => is_part(row) ? group_at[kind_of(row)] : NONE}

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

/** Ops among the rows that a window keeps; all but `place` are positions among them. */
type OpRows = {
  /** position of a kept row of the record */
  place: Int32Array
  /** a counted row itself, else the nearest counted one around it, -1 for none */
  index: Int32Array
  /** nearest counted row around one, -1 for none */
  parent: Int32Array
  /** the counted row to whose line of the table a row adds: itself, for a repeat its parent's host */
  host: Int32Array
}

function op_rows(store: Store, {state, rows}: Kept): OpRows {
  const is_listed = listed_rows(store)
  const place = new Int32Array(store.rows)
  const [index, parent] = [new Int32Array(rows.length), new Int32Array(rows.length)]
  rows.forEach((row, at) => {
    place[row] = at
    let above = store.parent[row]
    while (above >= 0 && state[above] == OUTSIDE) {
      above = store.parent[above]
    }
    parent[at] = above < 0 ? NONE : index[place[above]]
    index[at] = is_listed[row] == 1 ? at : parent[at]
  })
  return {place, index, parent, host: hosts(store, rows, index, parent)}
}

/** Returns for each counted row the one with which it counts: as in torch, an only child with its parent's name repeats it. */
function hosts(store: Store, rows: Int32Array, index: Int32Array, parent: Int32Array): Int32Array {
  const children = new Uint32Array(rows.length)
  parent.forEach((above, at) => {
    if (index[at] == at && above >= 0) {
      children[above]++
    }
  })
  const host = new Int32Array(rows.length)
  parent.forEach((above, at) => {
    const is_repeat = index[at] == at && above >= 0 && children[above] == 1 && same_name(store, rows[at], rows[above])
    host[at] = is_repeat ? host[above] : at
  })
  return host
}

function same_name(store: Store, a: number, b: number): boolean {
  return store.header.label[store.label[a]][0] == store.header.label[store.label[b]][0]
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
