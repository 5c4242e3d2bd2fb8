/** What happened in a time range, in a few numbers. */

import {gpu_rows} from "./device_time"
import {Intervals} from "./intervals"
import {op_table} from "./op_table"
import type {Store, Window} from "./store"

/** Times in ns. */
export type DeviceTotals = {device: number, busy: number, idle: number}
export type CategoryTotals = {category: string, calls: number, time: number}
export type Totals = {span: number, devices: DeviceTotals[], categories: CategoryTotals[]}

/** Busy time of each GPU (any kernel, copy or memset on any stream) and time by category. */
export function totals(store: Store, window: Window): Totals {
  const span = window.end - window.start
  const devices = [...device_busy(store)].map(([device, intervals]) => {
    const busy = intervals.covered(window.start, window.end)
    return {device, busy: store.ns(busy), idle: store.ns(span - busy)}
  })
  return {span: store.ns(span), devices, categories: by_category(store, window)}
}

/** CPU categories by self time, GPU categories by the sum of their slices; longest first. */
function by_category(store: Store, window: Window): CategoryTotals[] {
  const is_gpu = new Set(Array.from(gpu_rows(store), (row) => store.category(row)))
  return op_table(store, window, "category")
    .map((row) => ({category: row.category, calls: row.calls,
      time: is_gpu.has(row.category) ? row.device_self : row.cpu_self}))
    .sort((a, b) => b.time - a.time)
}

function device_busy(store: Store): Map<number, Intervals> {
  return store.lazily("device_busy", () => {
    const device_of = (row: number): number => store.header.tracks[store.track[row]].device
    const rows = Array.from(gpu_rows(store)).sort((a, b) => store.ts[a] - store.ts[b])
    const devices = [...new Set(rows.map(device_of))].sort((a, b) => a - b)
    return new Map(devices.map((device) =>
      [device, Intervals.union(store.ts, store.end, rows.filter((row) => device_of(row) == device))]))
  })
}
