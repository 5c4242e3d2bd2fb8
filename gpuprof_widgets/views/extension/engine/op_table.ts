/** The op table of a time range: events are cut at its edges, GPU time goes to the op that caused it. */

import {own_device_times, subtree_sums} from "./device_time"
import {add_self_times} from "./nest"
import type {Store, Window} from "./store"
import {NONE} from "./store"

export type Grouping = "name" | "name_shape" | "category"

/** Times in ns. */
export type OpRow = {
  /** identifies the row among those of its grouping, in any window */
  key: string
  /** index into `header.label`, -1 where rows are grouped by category */
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

/** Rows of the op table, in no order; those without calls and time are left out. */
export function op_table(store: Store, window: Window, grouping: Grouping): OpRow[] {
  const {groups, group_of} = grouped(store, grouping)
  const rows: OpRow[] = groups.map((group) =>
    ({...group, calls: 0, cpu_total: 0, cpu_self: 0, device_total: 0, device_self: 0}))
  const device_self = own_device_times(store, window)
  const device_total = subtree_sums(device_self, store.parent)
  const cpu_self = cpu_self_times(store, window)
  for (let row = 0; row < store.rows; row++) {
    if (group_of[row] == NONE) {
      continue
    }
    const sums = rows[group_of[row]]
    if (store.is_inside(row, window)) {
      sums.calls += store.count[row]
    }
    const time = store.time_inside(row, window)
    if (store.on_gpu[row] == 1) {
      sums.device_self += time
      sums.device_total += time
    } else {
      sums.cpu_total += time
      sums.cpu_self += cpu_self[row]
      sums.device_self += device_self[row]
      sums.device_total += device_total[row]
    }
  }
  return rows.filter(has_content).map((row) => in_ns(store, row))
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

function cpu_self_times(store: Store, window: Window): Float64Array {
  const self = new Float64Array(store.rows)
  store.header.tracks.forEach((track, i) => {
    if (track.kind == "cpu") {
      add_self_times(self, store, window.start, window.end, store.first_row[i], store.first_row[i + 1])
    }
  })
  return self
}

/** Which group each row belongs to, -1 for rows that are no part of an op table. */
function grouped(store: Store, grouping: Grouping): Groups {
  return store.lazily(`groups by ${grouping}`, () => {
    const groups: Group[] = []
    const index = new Map<string, number>()
    const listed = store.header.tracks.map(({kind}) => kind == "cpu" || kind == "gpu" || kind == "copy")
    const group_of = new Int32Array(store.rows)
    for (let row = 0; row < store.rows; row++) {
      group_of[row] = listed[store.track[row]] ? index_of(group_key(store, row, grouping), row) : NONE
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
    case "name": return String(store.label[row])
    case "name_shape": return `${store.label[row]} ${store.shape_of(row)}`
    case "category": return String(store.header.label[store.label[row]][1])
  }
}

function group(store: Store, row: number, grouping: Grouping, key: string): Group {
  const category = store.category(row)
  if (grouping == "category") {
    return {key, label: NONE, shape: NONE, name: category, category}
  }
  const shape = grouping == "name" ? NONE : store.shape_of(row)
  return {key, label: store.label[row], shape, name: store.name(row), category}
}

function has_content(row: OpRow): boolean {
  return row.calls > 0 || row.cpu_total > 0 || row.device_total > 0
}

function in_ns(store: Store, row: OpRow): OpRow {
  const ns = (ticks: number) => store.ns(ticks)
  return {...row, cpu_total: ns(row.cpu_total), cpu_self: ns(row.cpu_self),
    device_total: ns(row.device_total), device_self: ns(row.device_self)}
}
