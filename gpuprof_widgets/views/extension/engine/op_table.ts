/** The op table of a time range: events are cut at its edges, GPU time goes to the op that caused it. */

import {gpu_rows, own_device_times, subtree_sums} from "./device_time"
import {INSIDE, kept_rows, OUTSIDE} from "./kept"
import {merged_name} from "./steps"
import {add_self_times, gather, nest, subtree_ends} from "./nest"
import type {Nesting} from "./nest"
import {GPU_CATEGORIES, group_rows, NONE} from "./store"
import type {Store, Window} from "./store"

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

/** Which of the numbers that not every record has this one has. */
export type Recorded = {cpu_self_memory: boolean, device_self_memory: boolean, flops: boolean}

type Group = Pick<OpRow, "key" | "label" | "shape" | "name" | "category">
type Groups = {groups: Group[], group_of: Int32Array}

/** Ns of self time of all rows; null where nothing of that side was recorded. */
export type SelfTimes = {cpu: number | null, gpu: number | null}

const MEMORY_EVENT = "[memory]"
const GPU_TRACKS = ["gpu", "copy"]

/** Rows of the op table, in no order; those without calls and time are left out. */
export function op_table(store: Store, window: Window, grouping: Grouping): OpRow[] {
  const {groups, group_of} = grouped(store, grouping)
  const sums = new Sums(groups.length)
  const kept = kept_rows(store, window)
  add_ops(store, window, kept, group_of, sums)
  add_gpu_rows(store, window, kept, group_of, sums)
  return groups.flatMap((group, i) => sums.is_empty(i) ? [] : sums.row(store, group, i))
}

/** What torch writes below its table. The GPU's is that of its own work: the ops have that time once more. */
export function self_times(store: Store, rows: OpRow[]): SelfTimes {
  const sum = (some: OpRow[], time: (row: OpRow) => number): number => some.reduce((all, row) => all + time(row), 0)
  const has = (...kinds: string[]): boolean => rows.length > 0 && store.header.tracks.some(({kind}) => kinds.includes(kind))
  const work = rows.filter(({category}) => GPU_CATEGORIES.includes(category))
  return {
    cpu: has("cpu") ? sum(rows, (row) => row.cpu_self) : null,
    gpu: has(...GPU_TRACKS) ? sum(work, (row) => row.device_self) : null,
  }
}

/** The numbers of each group; times in ticks. */
class Sums {
  readonly calls: Float64Array
  readonly cpu_total: Float64Array
  readonly cpu_self: Float64Array
  readonly device_total: Float64Array
  readonly device_self: Float64Array
  readonly cpu_self_memory: Float64Array
  readonly device_self_memory: Float64Array
  readonly flops: Float64Array

  constructor(groups: number) {
    this.calls = new Float64Array(groups)
    this.cpu_total = new Float64Array(groups)
    this.cpu_self = new Float64Array(groups)
    this.device_total = new Float64Array(groups)
    this.device_self = new Float64Array(groups)
    this.cpu_self_memory = new Float64Array(groups)
    this.device_self_memory = new Float64Array(groups)
    this.flops = new Float64Array(groups)
  }

  is_empty(i: number): boolean {
    return this.calls[i] == 0 && this.cpu_total[i] == 0 && this.cpu_self[i] == 0 && this.device_total[i] == 0
  }

  row(store: Store, {key, label, shape, name, category}: Group, i: number): OpRow {
    return {
      key, label, shape, name, category,
      calls: this.calls[i],
      cpu_total: store.ns(this.cpu_total[i]),
      cpu_self: store.ns(this.cpu_self[i]),
      device_total: store.ns(this.device_total[i]),
      device_self: store.ns(this.device_self[i]),
      cpu_self_memory: this.cpu_self_memory[i],
      device_self_memory: this.device_self_memory[i],
      flops: this.flops[i],
    }
  }
}

function add_ops(store: Store, window: Window, kept: Uint8Array, group_of: Int32Array, sums: Sums): void {
  const ops = op_rows(store, kept)
  const device_self = own_device_times(store, window, ops.index)
  const device_total = subtree_sums(device_self, ops.parent)
  const cpu_self = op_self_times(store, window)
  for (let row = 0; row < store.rows; row++) {
    if (ops.is_op[row] == 0) {
      continue
    }
    const group = group_of[ops.host[row]]
    sums.cpu_self[group] += cpu_self[row]
    sums.device_self[group] += device_self[row]
    if (ops.repeat[row] == 0) {
      if (kept[row] == INSIDE) {
        sums.calls[group] += store.count[row]
        sums.flops[group] += store.flops(row)
      }
      sums.cpu_total[group] += store.time_inside(row, window)
      sums.device_total[group] += device_total[row]
    }
  }
  for (const row of memory_rows(store)) {
    if (kept[row] == INSIDE) {
      const op = ops.index[row]
      const group = group_of[op == NONE ? row : ops.host[op]]
      sums.cpu_self_memory[group] += cpu_bytes(store, row)
      sums.device_self_memory[group] += store.device_bytes(row)
      if (op == NONE) {
        sums.calls[group] += store.count[row] // an allocation outside of any op, as in torch
      }
    }
  }
}

function add_gpu_rows(store: Store, window: Window, kept: Uint8Array, group_of: Int32Array, sums: Sums): void {
  for (const row of gpu_rows(store)) {
    if (kept[row] == INSIDE) {
      const time = store.time_inside(row, window)
      sums.calls[group_of[row]] += store.count[row]
      sums.device_self[group_of[row]] += time
      sums.device_total[group_of[row]] += time
    }
  }
}

/** Which columns have anything to say, in the whole record. */
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
    const shapes = grouping == "name_shape" ? store.header.shapes.length + 1 : 1
    const known = new Int32Array(store.header.label.length*shapes).fill(NONE)
    const group_of = new Int32Array(store.rows).fill(NONE)
    store.header.tracks.forEach(({kind}, track) => {
      for (let row = store.first_row[track]; row < store.first_row[track + 1]; row++) {
        if (kind == "cpu" || store.on_gpu[row] == 1) {
          const shape = shapes == 1 ? 0 : store.shape_of(row) + 1
          const at = store.label[row]*shapes + shape
          if (known[at] == NONE) {
            known[at] = index_of(group(store, row, grouping))
          }
          group_of[row] = known[at]
        }
      }
    })
    return {groups, group_of}

    function index_of(group: Group): number {
      const found = index.get(group.key)
      if (found != null) {
        return found
      }
      index.set(group.key, groups.length)
      return groups.push(group) - 1
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
  const is_op = listed_rows(store).slice()
  for (let row = 0; row < store.rows; row++) {
    if (kept[row] == OUTSIDE) {
      is_op[row] = 0
    }
  }
  const {index, parent} = nearest_ops(store, is_op)
  return {is_op, index, parent, ...repeats(store, is_op, parent)}
}

/** Per row its self time (ticks) in the window among the rows that an op table may count. */
function op_self_times(store: Store, window: Window): Float64Array {
  return self_times_among(store, window, "listed", () => listed_rows(store))
}

/** Per row of a mask (known by its name) its self time (ticks) in the window among the mask's rows. */
export function self_times_among(store: Store, window: Window, name: string, mask: () => Uint8Array): Float64Array {
  const self = new Float64Array(store.rows)
  for (const nesting of store.lazily(`${name} nestings`, () => nestings(store, mask()))) {
    const own = new Float64Array(nesting.rows.length)
    add_self_times(own, nesting, window.start, window.end, 0, own.length)
    for (let i = 0; i < own.length; i++) {
      self[nesting.rows[i]] = own[i]
    }
  }
  return self
}

/** Rows of CPU tracks, without those that never get a line in an op table. */
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

/** The rows of a mask on each track, nested among themselves: what is not in it takes no time away. */
function nestings(store: Store, mask: Uint8Array): (Nesting & {rows: Int32Array})[] {
  return store.header.tracks.map((_, track) => {
    const first = store.first_row[track]
    const rows = group_rows(mask.subarray(first, store.first_row[track + 1]), first)[1] ?? new Int32Array(0)
    const ts = gather(store.ts, rows)
    const end = gather(store.end, rows)
    const parent = nest(ts, end)
    return {rows, ts, end, parent, subtree_end: subtree_ends(end, parent)}
  })
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
