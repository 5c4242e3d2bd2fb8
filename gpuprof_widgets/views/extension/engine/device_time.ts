/** GPU time of a window, by the op or launch that caused it and by device. */

import type {Times, Window} from "./columns"
import {covered, union, type Intervals} from "./intervals"
import {rows_equal_to, type Store} from "./store"

/** Returns the GPU rows in order: they are few among the CPU rows, and needed for every window. */
export function gpu_rows(store: Store): Int32Array {
  return store.lazily("gpu_rows", () => rows_equal_to(store.on_gpu, 1))
}

/** Returns each value plus all values below it; a parent stands before its children. */
export function subtree_sums(values: Float64Array, parent: Int32Array): Float64Array {
  const sums = values.slice()
  for (let row = sums.length - 1; row >= 0; row--) {
    if (parent[row] >= 0 && sums[row] != 0) {
      sums[parent[row]] += sums[row]
    }
  }
  return sums
}

/** Times in ns. */
export type DeviceTotals = {device: number, busy: number, idle: number}
export type Totals = {span: number, devices: DeviceTotals[]}

/** Returns the busy time of each GPU: any kernel, copy or memset on any stream. */
export function totals(store: Store, window: Window): Totals {
  const span = window.end - window.start
  const devices = [...device_busy(store)].map(([device, intervals]) => {
    const busy = covered(intervals, window.start, window.end)
    return {device, busy: store.ns(busy), idle: store.ns(span - busy)}
  })
  return {span: store.ns(span), devices}
}

function device_busy(store: Store): Map<number, Intervals> {
  return store.lazily("device_busy", () => {
    const rows = new Map<number, Int32Array>()
    store.header.tracks.forEach(({device}, track) => {
      const of_track = store.those_on_track(track, gpu_rows(store))
      if (of_track.length > 0) {
        rows.set(device, by_start(store.ts, rows.get(device) ?? new Int32Array(0), of_track))
      }
    })
    const devices = [...rows].sort(([a], [b]) => a - b)
    return new Map(devices.map(([device, of_device]) => [device, union(store.ts, store.end, of_device)]))
  })
}

/** Merges rows that are each sorted by start, as those of a track are. */
function by_start(ts: Times, a: Int32Array, b: Int32Array): Int32Array {
  const rows = new Int32Array(a.length + b.length)
  for (let i = 0, from_a = 0, from_b = 0; i < rows.length; i++) {
    const is_next = from_b == b.length || from_a < a.length && ts[a[from_a]] <= ts[b[from_b]]
    rows[i] = is_next ? a[from_a++] : b[from_b++]
  }
  return rows
}
