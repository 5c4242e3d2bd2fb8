import type {Range1d} from "@bokehjs/models/ranges/range1d"

import type {TraceStore} from "./trace_store"

function show(range: Range1d, start: number, span: number, [low, high]: [number, number], tick: number): void {
  const width = Math.min(Math.max(span, 4 * tick), high - low)
  const first = Math.min(Math.max(start, low), high - width)
  range.setv({start: first, end: first + width})
}

/** Moves the visible range by a share of its width; it never leaves the trace. */
export function pan_by(store: TraceStore, share: number): void {
  const {start, end} = store.visible
  const span = end - start
  show(store.visible, start + share * span, span, store.bounds, store.data.header.tick_ns)
}

/** Moves the visible range so that it starts at `start` (ns). */
export function pan_to(store: TraceStore, start: number): void {
  show(store.visible, start, store.visible.end - store.visible.start, store.bounds, store.data.header.tick_ns)
}

/** Zooms by a factor (above 1: closer) around the point at share `at` of the width. */
export function zoom_by(store: TraceStore, factor: number, at: number = 0.5): void {
  const {start, end} = store.visible
  const span = (end - start) / factor
  const fixed = start + at * (end - start)
  const {tick_ns} = store.data.header
  show(store.visible, fixed - at * Math.max(span, 4 * tick_ns), span, store.bounds, tick_ns)
}

/** Shows a range (ns) with a margin on both sides, as a share of its length. */
export function zoom_to(store: TraceStore, start: number, end: number, margin: number = 0.05): void {
  const span = Math.max(end - start, store.data.header.tick_ns)
  show(store.visible, start - margin * span, span * (1 + 2 * margin), store.bounds, store.data.header.tick_ns)
}

/** Moves the view only where a range (ns) lies outside of it. */
export function reveal(store: TraceStore, start: number, end: number): void {
  const view = store.visible
  if (end < view.start || start > view.end) {
    const span = view.end - view.start
    pan_to(store, end - start > span ? start : (start + end - span) / 2)
  }
}

/** The keys that every time axis of the report answers to; false where the key is not one of them. */
export function view_key(store: TraceStore, key: string): boolean {
  switch (key) {
    case "ArrowLeft": case "a": pan_by(store, -0.2); return true
    case "ArrowRight": case "d": pan_by(store, 0.2); return true
    case "+": case "=": case "w": zoom_by(store, 1.5); return true
    case "-": case "_": case "s": zoom_by(store, 1 / 1.5); return true
    case "Home": case "0": zoom_to(store, ...store.bounds, 0); return true
    default: return false
  }
}
