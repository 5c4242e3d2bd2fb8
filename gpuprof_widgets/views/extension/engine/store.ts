/** The decoded record: columns by row, in ticks, and the nesting and links that follow from them. */

import type {Columns, Numbers, Rows, Window} from "./columns"
import {decode, unpack} from "./decode"
import type {Header} from "./header"
import {check_columns} from "./header_check"
import {first_at_or_after} from "./intervals"
import {category_mask, first_rows, masked, OP_CATEGORIES, rows_of} from "./rows"

/** Results that take their time, by name. */
export type Found = Map<string, unknown>

export const NONE = -1
/** The recorder's own marks on a thread: a cell's statement, a module's forward, its backward. */
export const REGION_CATEGORIES = ["cell_line", "module", "module_backward"]

/** A decoded record; its columns are its fields. */
export interface Store extends Rows {}

export class Store {
  static async decode(payload: string): Promise<Store> {
    return Store.of_bytes(await unpack(payload))
  }

  static of_bytes(bytes: Uint8Array<ArrayBuffer>): Store {
    const {header, columns, arrays} = decode(bytes)
    check_columns(header, columns)
    return Store.of_columns(header, columns, arrays)
  }

  static of_columns(header: Header, columns: Columns, arrays: Float64Array[] = []): Store {
    return new Store(header, rows_of(header, columns), arrays)
  }

  readonly rows: number
  /** the whole record as a window */
  readonly whole: Window
  readonly track: Uint8Array | Uint16Array
  /** first row of each track, and at the end the number of rows */
  readonly first_row: Uint32Array

  /** `found`: what another store of the same record has found out, see `hand_over`. */
  constructor(readonly header: Header, readonly columns: Rows, readonly arrays: Float64Array[] = [], private found: Found = new Map()) {
    Object.assign(this, columns)
    this.rows = header.rows
    this.whole = {start: Math.floor(this.tick(header.start_ns)), end: Math.ceil(this.tick(header.end_ns))}
    this.first_row = first_rows(header)
    this.track = new (header.tracks.length <= 2**8 ? Uint8Array : Uint16Array)(this.rows)
    header.tracks.forEach((_, track) => this.track.fill(track, this.first_row[track], this.first_row[track + 1]))
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
    return this.shapes == null ? NONE : this.shapes[row] - 1
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
    const {ts, end, parent} = this
    const last = this.first_row[this.track[row] + 1]
    let self = end[row] - ts[row]
    // What lies below a child follows it; from its start until all of that has ended, the child takes the row's time.
    for (let child = row + 1; child < last && ts[child] < end[row];) {
      let taken_until = end[child]
      let next = child + 1
      for (; next < last && ts[next] < end[row] && parent[next] != row; next++) {
        taken_until = Math.max(taken_until, end[next])
      }
      self -= Math.min(taken_until, end[row]) - ts[child]
      child = next
    }
    return self
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

  private grouped_on_track(track: number, keys: Numbers): Int32Array[] {
    const first = this.first_row[track]
    return group_rows(keys.subarray(first, this.first_row[track + 1]), first)
  }

  /** Returns the rows of a track that are 1 in a mask. */
  masked_rows(track: number, mask: Uint8Array): Int32Array {
    return this.grouped_on_track(track, mask)[1] ?? new Int32Array(0)
  }

  /** Returns those of some rows (ascending) that lie on a track. */
  those_on_track(track: number, rows: Int32Array): Int32Array {
    const [first, last] = [track, track + 1].map((at) => first_at_or_after(rows, this.first_row[at]))
    return rows.subarray(first, last)
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
    return category_mask(this.header, categories)
  }

  /** Returns a mask of rows from a mask of labels. */
  by_label(mask: Uint8Array): Uint8Array {
    return masked(this.label, mask)
  }

  /** Returns a mask of some rows. */
  mask_of(rows: ArrayLike<number>): Uint8Array {
    const mask = new Uint8Array(this.rows)
    for (let i = 0; i < rows.length; i++) {
      mask[rows[i]] = 1
    }
    return mask
  }

  /** Returns a result that is computed when it is first asked for: not every page needs it. */
  lazily<T>(key: string, compute: () => T): T {
    if (!this.found.has(key)) {
      this.found.set(key, compute())
    }
    return this.found.get(key) as T
  }

  /** Returns the results found so far, which this store computes anew if it is asked again. */
  hand_over(): Found {
    const {found} = this
    this.found = new Map()
    return found
  }
}

/** Returns the time of an event from `ts` to `end` inside a window. */
export function overlap(ts: number, end: number, window: Window): number {
  return Math.max(Math.min(end, window.end) - Math.max(ts, window.start), 0)
}

/** Returns the rows at which a column has a value. */
export function rows_equal_to(column: ArrayLike<number>, value: number): Int32Array {
  let count = 0
  for (let row = 0; row < column.length; row++) {
    count += Number(column[row] == value)
  }
  const rows = new Int32Array(count)
  for (let row = 0, at = 0; at < count; row++) {
    if (column[row] == value) {
      rows[at++] = row
    }
  }
  return rows
}

/** Returns rows (from `offset` on) by their key. */
export function group_rows(keys: Numbers, offset: number): Int32Array[] {
  let most = -1
  for (let i = 0; i < keys.length; i++) {
    most = Math.max(most, keys[i])
  }
  const sizes = new Uint32Array(most + 1)
  for (let i = 0; i < keys.length; i++) {
    sizes[keys[i]]++
  }
  const groups = Array.from(sizes, (size) => new Int32Array(size))
  const filled = new Uint32Array(groups.length)
  for (let i = 0; i < keys.length; i++) {
    groups[keys[i]][filled[keys[i]]++] = offset + i
  }
  return groups
}
