/** GPU time of a window, by the op or launch that caused it and by device. */

import {Intervals} from "./intervals"
import {rows_equal_to, type Store, type Window} from "./store"

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
    const busy = intervals.covered(window.start, window.end)
    return {device, busy: store.ns(busy), idle: store.ns(span - busy)}
  })
  return {span: store.ns(span), devices}
}

function device_busy(store: Store): Map<number, Intervals> {
  return store.lazily("device_busy", () => {
    const device_of = (row: number): number => store.header.tracks[store.track[row]].device
    const rows = gpu_rows(store).slice().sort((a, b) => store.ts[a] - store.ts[b] || a - b)
    const devices = [...new Set(rows.map(device_of))].sort((a, b) => a - b)
    return new Map(devices.map((device) =>
      [device, Intervals.union(store.ts, store.end, rows.filter((row) => device_of(row) == device))]))
  })
}
