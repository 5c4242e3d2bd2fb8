/** The op table of a time range: events are cut at its edges, GPU time goes to the op that caused it. */

import {gpu_rows, own_device_times, subtree_sums} from "./device_time"
import {INSIDE, kept_rows} from "./kept"
import {op_rows, op_self_times} from "./op_rows"
import type {Store, Window} from "./store"
import {NONE} from "./store"

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
}

type Group = Pick<OpRow, "key" | "label" | "shape" | "name" | "category">
type Groups = {groups: Group[], group_of: Int32Array}

const MEMORY_EVENT = "[memory]"

/** Rows of the op table, in no order; those without calls and time are left out. */
export function op_table(store: Store, window: Window, grouping: Grouping): OpRow[] {
  const {groups, group_of} = grouped(store, grouping)
  const table: OpRow[] = groups.map((group) =>
    ({...group, calls: 0, cpu_total: 0, cpu_self: 0, device_total: 0, device_self: 0}))
  const kept = kept_rows(store, window)
  add_ops(store, window, kept, group_of, table)
  add_gpu_rows(store, window, kept, group_of, table)
  return table.filter(has_content).map((row) => in_ns(store, row))
}

function add_ops(store: Store, window: Window, kept: Uint8Array, group_of: Int32Array, table: OpRow[]): void {
  const ops = op_rows(store, kept)
  const device_self = own_device_times(store, window, ops.index)
  const device_total = subtree_sums(device_self, ops.parent)
  const cpu_self = op_self_times(store, window)
  for (let row = 0; row < store.rows; row++) {
    if (ops.is_op[row] == 1) {
      const sums = table[group_of[ops.host[row]]]
      sums.cpu_self += cpu_self[row]
      sums.device_self += device_self[row]
      if (ops.repeat[row] == 0) {
        sums.calls += kept[row] == INSIDE ? store.count[row] : 0
        sums.cpu_total += store.time_inside(row, window)
        sums.device_total += device_total[row]
      }
    } else if (kept[row] == INSIDE && ops.index[row] < 0 && store.name(row) == MEMORY_EVENT) {
      table[group_of[row]].calls += store.count[row] // an allocation outside of any op, as in torch
    }
  }
}

function add_gpu_rows(store: Store, window: Window, kept: Uint8Array, group_of: Int32Array, table: OpRow[]): void {
  for (const row of gpu_rows(store)) {
    if (kept[row] == INSIDE) {
      const sums = table[group_of[row]]
      const time = store.time_inside(row, window)
      sums.calls += store.count[row]
      sums.device_self += time
      sums.device_total += time
    }
  }
}

/** The slices that a row of the op table stands for, in the whole record. */
export function op_row_instances(store: Store, grouping: Grouping, key: string): Int32Array {
  const {groups, group_of} = grouped(store, grouping)
  const wanted = groups.findIndex((group) => group.key == key)
  const rows: number[] = []
  for (let row = 0; wanted >= 0 && row < store.rows; row++) {
    if (group_of[row] == wanted) {
      rows.push(row)
    }
  }
  return Int32Array.from(rows)
}

/** Key of the op table's row to which a slice belongs; null for slices that the table leaves out. */
export function op_row_key(store: Store, grouping: Grouping, row: number): string | null {
  const {groups, group_of} = grouped(store, grouping)
  return group_of[row] == NONE ? null : groups[group_of[row]].key
}

/** Which group each row belongs to, -1 for rows that are no part of an op table. */
function grouped(store: Store, grouping: Grouping): Groups {
  return store.lazily(`groups by ${grouping}`, () => {
    const groups: Group[] = []
    const index = new Map<string, number>()
    const is_cpu = store.header.tracks.map(({kind}) => kind == "cpu")
    const group_of = new Int32Array(store.rows).fill(NONE)
    for (let row = 0; row < store.rows; row++) {
      if (is_cpu[store.track[row]] || store.on_gpu[row] == 1) {
        group_of[row] = index_of(group_key(store, row, grouping), row)
      }
    }
    return {groups, group_of}

    function index_of(key: string, row: number): number {
      let found = index.get(key)
      if (found == null) {
        found = groups.length
        index.set(key, found)
        groups.push(group(store, row, grouping, key))
      }
      return found
    }
  })
}

function group_key(store: Store, row: number, grouping: Grouping): string {
  switch (grouping) {
    case "name": return label_key(store, row)
    case "name_shape": return `${label_key(store, row)}\n${store.shape_of(row)}`
    case "category": return store.category(row)
  }
}

function label_key(store: Store, row: number): string {
  return `${store.category(row)}\n${listed_name(store, row)}`
}

/** All steps of a profiler are one line, as in torch. */
function listed_name(store: Store, row: number): string {
  const name = store.name(row)
  return name.startsWith("ProfilerStep#") ? "ProfilerStep*" : name
}

function group(store: Store, row: number, grouping: Grouping, key: string): Group {
  const category = store.category(row)
  const name = grouping == "category" ? category : listed_name(store, row)
  const shape = grouping == "name_shape" ? store.shape_of(row) : NONE
  return {key, label: store.label[row], shape, name, category}
}

function has_content(row: OpRow): boolean {
  return row.calls > 0 || row.cpu_total > 0 || row.cpu_self > 0 || row.device_total > 0
}

function in_ns(store: Store, row: OpRow): OpRow {
  const ns = (ticks: number): number => store.ns(ticks)
  return {...row, cpu_total: ns(row.cpu_total), cpu_self: ns(row.cpu_self),
    device_total: ns(row.device_total), device_self: ns(row.device_self)}
}
