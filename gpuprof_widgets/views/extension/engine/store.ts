/** The decoded record: columns by row, in ticks, and the nesting and links that follow from them. */

import {decode_payload, type Columns} from "./decode"
import type {Header} from "./header"
import {add_self_times, depths, nearest_ancestors, nest, subtree_ends} from "./nest"

/** A time range [start, end) in ticks. One that reaches the end of the record is closed there. */
export type Window = {start: number, end: number}

export const NONE = -1
export const OP_CATEGORIES = ["cpu_op", "user_annotation"]
/** The recorder's own marks on a thread: a cell's statement, a module's forward, its backward. */
export const REGION_CATEGORIES = ["cell_line", "module", "module_backward"]
export const GPU_CATEGORIES = ["kernel", "gpu_memcpy", "gpu_memset"]

export class Store {
  static async decode(payload: string): Promise<Store> {
    const {header, columns, arrays} = await decode_payload(payload)
    return new Store(header, columns, arrays)
  }

  readonly rows: number
  /** the whole record as a window */
  readonly whole: Window
  /** start and end of each row, in ticks since the trace's start */
  readonly ts: Float64Array
  readonly end: Float64Array
  /** start and end in ticks before a window cut the row: at its edge the order of the starts is lost */
  readonly began: Float64Array
  readonly ended: Float64Array
  /** index into `header.label` */
  readonly label: Uint32Array
  readonly track: Uint16Array
  /** row of the latest slice of the track that is still open when this one starts, -1 for none */
  readonly parent: Int32Array
  readonly depth: Uint16Array
  /** GPU rows: row of the launch, or of the op where the record has no launch, else -1 */
  readonly owner: Int32Array
  /** GPU and launch rows: row of the innermost op or annotation that they belong to, else -1 */
  readonly op: Int32Array
  /** backward ops: row of the forward op, else -1 */
  readonly forward: Int32Array
  /** events that a row stands for; 0 for owners kept from outside of a window */
  readonly count: Uint32Array
  /** 1 for kernels, copies and memsets */
  readonly on_gpu: Uint8Array
  /** first row of each track, and at the end the number of rows */
  readonly first_row: Uint32Array
  /** latest end of a row and of everything below it */
  readonly subtree_end: Float64Array

  private readonly shape_index: Float64Array | null
  private readonly byte_sizes: Float64Array | null
  private readonly device_byte_sizes: Float64Array | null
  private readonly flop_counts: Float64Array | null

  constructor(readonly header: Header, columns: Columns, readonly arrays: Float64Array[] = []) {
    this.rows = header.rows
    this.whole = {start: Math.floor(this.tick(header.start_ns)), end: Math.ceil(this.tick(header.end_ns))}
    this.ts = columns.get("ts")!
    this.end = columns.get("dur")!.map((dur, row) => this.ts[row] + dur)
    this.began = columns.get("before")?.map((time, row) => this.ts[row] - time) ?? this.ts
    this.ended = columns.get("after")?.map((time, row) => this.end[row] + time) ?? this.end
    this.label = new Uint32Array(columns.get("label")!)
    this.first_row = first_rows(header)
    this.track = new Uint16Array(this.rows)
    header.tracks.forEach((_, track) => this.track.fill(track, this.first_row[track], this.first_row[track + 1]))
    this.parent = this.parents(columns.get("parent"))
    this.depth = depths(this.parent)
    this.subtree_end = subtree_ends(this.end, this.parent)
    this.owner = this.links(columns.get("owner"))
    this.forward = this.links(columns.get("forward"))
    this.count = new Uint32Array(columns.get("count") ?? new Float64Array(this.rows).fill(1))
    this.shape_index = columns.get("shape") ?? null
    this.byte_sizes = columns.get("bytes") ?? null
    this.device_byte_sizes = columns.get("device_bytes") ?? null
    this.flop_counts = columns.get("flops") ?? null
    this.on_gpu = this.by_label(this.category_mask(GPU_CATEGORIES))
    this.op = this.ops(columns.get("op"))
  }

  name(row: number): string {
    return this.header.names[this.header.label[this.label[row]][0]]
  }

  category(row: number): string {
    return this.header.categories[this.header.label[this.label[row]][1]]
  }

  /** Input shapes, empty where they were not recorded. */
  shape(row: number): string {
    const index = this.shape_of(row)
    return index == NONE ? "" : this.header.shapes[index]
  }

  /** Index into `header.shapes`, -1 for none. */
  shape_of(row: number): number {
    return this.shape_index == null ? NONE : this.shape_index[row] - 1
  }

  /** Bytes copied or allocated (negative: released), 0 where the event has no size. */
  bytes(row: number): number {
    return this.byte_sizes?.[row] ?? 0
  }

  /** Returns an allocation's bytes on a device; its other bytes are the CPU's. */
  device_bytes(row: number): number {
    return this.device_byte_sizes?.[row] ?? 0
  }

  /** Floating point operations of an op, 0 where they do not follow from what was recorded. */
  flops(row: number): number {
    return this.flop_counts?.[row] ?? 0
  }

  is_op(row: number): boolean {
    return OP_CATEGORIES.includes(this.category(row))
  }

  ns(ticks: number): number {
    return ticks*this.header.tick_ns
  }

  tick(ns: number): number {
    return ns/this.header.tick_ns
  }

  /** Returns the window on whole ticks inside the record, for which totals are stated. */
  snap({start, end}: Window): Window {
    const whole = this.whole
    const clamp = (tick: number): number => Math.min(Math.max(Math.round(tick), whole.start), whole.end)
    return {start: clamp(Math.min(start, end)), end: clamp(Math.max(start, end))}
  }

  /** Whether a row belongs to a window; owners kept from outside of it (`count` 0) do not. */
  is_inside(row: number, window: Window): boolean {
    return this.count[row] > 0 && this.overlaps(this.ts[row], this.end[row], window)
  }

  /** Whether an event from `ts` to `end` overlaps a window or, without length, starts in it. */
  overlaps(ts: number, end: number, window: Window): boolean {
    if (end > ts) {
      return ts < window.end && end > window.start && window.start < window.end
    }
    return ts >= window.start && (ts < window.end || (ts == window.end && window.end == this.whole.end))
  }

  /** Returns the time of a row inside a window, in ticks. */
  time_inside(row: number, window: Window): number {
    return overlap(this.ts[row], this.end[row], window)
  }

  /** Returns the time in ticks during which a row is the latest-started open one of its track. */
  self_time(row: number): number {
    return this.self_times[row]
  }

  private get self_times(): Float64Array {
    return this.lazily("self_times", () => {
      const self = new Float64Array(this.rows)
      for (let track = 0; track < this.header.tracks.length; track++) {
        add_self_times(self, this, -Infinity, Infinity, this.first_row[track], this.first_row[track + 1])
      }
      return self
    })
  }

  /** Number of nesting levels of a track. */
  levels(track: number): number {
    return this.lanes[track].length
  }

  /** Rows of one level of a track: they follow each other without overlap. */
  lane(track: number, depth: number): Int32Array {
    return this.lanes[track][depth] ?? new Int32Array(0)
  }

  private get lanes(): Int32Array[][] {
    return this.lazily("lanes", () => this.header.tracks.map((_, track) => this.grouped_on_track(track, this.depth)))
  }

  private grouped_on_track(track: number, keys: Uint8Array | Uint16Array): Int32Array[] {
    const first = this.first_row[track]
    return group_rows(keys.subarray(first, this.first_row[track + 1]), first)
  }

  /** Returns the rows of a track that are 1 in a mask. */
  masked_rows(track: number, mask: Uint8Array): Int32Array {
    return this.grouped_on_track(track, mask)[1] ?? new Int32Array(0)
  }

  /** Returns all rows of a track, in order. */
  rows_of_track(track: number): Int32Array {
    const first = this.first_row[track]
    return Int32Array.from({length: this.first_row[track + 1] - first}, (_, i) => first + i)
  }

  /** Returns the GPU rows that a row launched (a runtime call, or an op where launches are unknown). */
  launched(row: number): Int32Array {
    const by_owner = this.lazily("launched", () => {
      const rows = new Map<number, number[]>()
      this.owner.forEach((owner, gpu) => {
        if (owner >= 0) {
          const launched = rows.get(owner) ?? []
          launched.push(gpu)
          rows.set(owner, launched)
        }
      })
      return rows
    })
    return Int32Array.from(by_owner.get(row) ?? [])
  }

  /** Returns all rows of a label, in order. */
  instances(label: number): Int32Array {
    return this.lazily("instances", () => group_rows(this.label, 0))[label] ?? new Int32Array(0)
  }

  /** Per label, whether its category is one of these. */
  category_mask(categories: readonly string[]): Uint8Array {
    const wanted = this.header.categories.map((category) => categories.includes(category))
    return Uint8Array.from(this.header.label, ([, category]) => Number(wanted[category]))
  }

  /** Returns a mask of rows from a mask of labels. */
  by_label(mask: Uint8Array): Uint8Array {
    const rows = new Uint8Array(this.rows)
    for (let row = 0; row < rows.length; row++) {
      rows[row] = mask[this.label[row]]
    }
    return rows
  }

  /** Returns a mask of some rows. */
  mask_of(rows: ArrayLike<number>): Uint8Array {
    const mask = new Uint8Array(this.rows)
    for (let i = 0; i < rows.length; i++) {
      mask[rows[i]] = 1
    }
    return mask
  }

  private readonly cache = new Map<string, unknown>()

  /** Returns a result that is computed when it is first asked for: not every page needs it. */
  lazily<T>(key: string, compute: () => T): T {
    if (!this.cache.has(key)) {
      this.cache.set(key, compute())
    }
    return this.cache.get(key) as T
  }

  private links(column: Float64Array | undefined): Int32Array {
    return column == null ? new Int32Array(this.rows).fill(NONE) : new Int32Array(column)
  }

  /** Returns the parents: as sent (the distance upwards) where coarse ticks or a window hide them, else by nesting. */
  private parents(distance: Float64Array | undefined): Int32Array {
    if (distance != null) {
      return Int32Array.from(distance, (step, row) => step == 0 ? NONE : row - step)
    }
    const parent = new Int32Array(this.rows)
    for (let track = 0; track < this.header.tracks.length; track++) {
      const first = this.first_row[track]
      const last = this.first_row[track + 1]
      const nested = nest(this.ts.subarray(first, last), this.end.subarray(first, last))
      parent.set(nested.map((above) => above < 0 ? NONE : first + above), first)
    }
    return parent
  }

  /** Returns the op of each GPU and launch row: as sent, else the innermost one around the launch. */
  private ops(sent: Float64Array | undefined): Int32Array {
    if (sent != null) {
      return new Int32Array(sent)
    }
    const is_op = this.by_label(this.category_mask(OP_CATEGORIES))
    const is_launch = this.by_label(this.category_mask(this.header.categories.filter(is_launch_category)))
    const around = nearest_ancestors(this.parent, is_op)
    return this.owner.map((owner, row) => {
      if (owner >= 0) {
        return is_op[owner] == 1 ? owner : around[owner]
      }
      return is_launch[row] == 1 ? around[row] : NONE
    })
  }
}

function first_rows(header: Header): Uint32Array {
  const first = new Uint32Array(header.tracks.length + 1)
  header.tracks.forEach((track, i) => first[i + 1] = first[i] + track.rows)
  return first
}

/** Returns the time of an event from `ts` to `end` inside a window. */
export function overlap(ts: number, end: number, window: Window): number {
  return Math.max(Math.min(end, window.end) - Math.max(ts, window.start), 0)
}

/** Returns the rows at which a column has a value. */
export function rows_equal_to(column: Int32Array, value: number): Int32Array {
  const rows: number[] = []
  for (let row = 0; row < column.length; row++) {
    if (column[row] == value) {
      rows.push(row)
    }
  }
  return Int32Array.from(rows)
}

/** Returns rows (from `offset` on) by their key. */
export function group_rows(keys: ArrayLike<number>, offset: number): Int32Array[] {
  const sizes: number[] = []
  for (let i = 0; i < keys.length; i++) {
    sizes[keys[i]] = (sizes[keys[i]] ?? 0) + 1
  }
  const groups = Array.from(sizes, (size) => new Int32Array(size ?? 0))
  const filled = new Uint32Array(groups.length)
  for (let i = 0; i < keys.length; i++) {
    groups[keys[i]][filled[keys[i]]++] = offset + i
  }
  return groups
}

/** Whether a category is of calls of a device's runtime or driver: CUDA, ROCm, XPU, ... */
export function is_launch_category(category: string): boolean {
  return /_(runtime|driver)$/.test(category)
}
