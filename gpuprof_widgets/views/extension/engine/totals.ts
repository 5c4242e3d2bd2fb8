/** What happened in a time range, in a few numbers. */

import {gpu_rows} from "./device_time"
import {Intervals} from "./intervals"
import type {Store, Window} from "./store"

/** Times in ns. */
export type DeviceTotals = {device: number, busy: number, idle: number}
export type Totals = {span: number, devices: DeviceTotals[]}

/** Busy time of each GPU: any kernel, copy or memset on any stream. */
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
    const rows = Array.from(gpu_rows(store)).sort((a, b) => store.ts[a] - store.ts[b])
    const devices = [...new Set(rows.map(device_of))].sort((a, b) => a - b)
    return new Map(devices.map((device) =>
      [device, Intervals.union(store.ts, store.end, rows.filter((row) => device_of(row) == device))]))
  })
}
