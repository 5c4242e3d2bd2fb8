/** Moves and zooms the range of time that all time axes of a report show. */

import type {TimeView} from "./report_state"

/** Shows a range from `start` (ns), at least four ticks long, inside the trace. */
function show(store: TimeView, start: number, span: number): void {
  const [low, high] = store.bounds
  const width = Math.min(Math.max(span, shortest_span(store)), high - low)
  const first = Math.min(Math.max(start, low), high - width)
  store.visible.setv({start: first, end: first + width})
}

function shortest_span(store: TimeView): number {
  return 4 * store.data.header.tick_ns
}

/** Moves the visible range by a share of its width; it never leaves the trace. */
export function pan_by(store: TimeView, share: number): void {
  const {start, end} = store.visible
  show(store, start + share * (end - start), end - start)
}

/** Moves the visible range so that it starts at `start` (ns). */
export function pan_to(store: TimeView, start: number): void {
  show(store, start, store.visible.end - store.visible.start)
}

/** Zooms by a factor (above 1: closer) around the point at share `at` of the width. */
export function zoom_by(store: TimeView, factor: number, at: number = 0.5): void {
  const {start, end} = store.visible
  const span = (end - start) / factor
  const fixed = start + at * (end - start)
  show(store, fixed - at * Math.max(span, shortest_span(store)), span)
}

/** Shows a range (ns) with a margin on both sides, as a share of its length. */
export function zoom_to(store: TimeView, start: number, end: number, margin: number = 0.05): void {
  const span = Math.max(end - start, store.data.header.tick_ns)
  show(store, start - margin * span, span * (1 + 2 * margin))
}

/** Moves the view only where a range (ns) lies outside of it. */
export function reveal(store: TimeView, start: number, end: number): void {
  const view = store.visible
  if (end < view.start || start > view.end) {
    const span = view.end - view.start
    pan_to(store, end - start > span ? start : (start + end - span) / 2)
  }
}

/** Handles the keys that all time axes of the report share; returns false for other keys. */
export function view_key(store: TimeView, key: string): boolean {
  switch (key) {
    case "ArrowLeft": case "a": pan_by(store, -0.2); return true
    case "ArrowRight": case "d": pan_by(store, 0.2); return true
    case "+": case "=": case "w": zoom_by(store, 1.5); return true
    case "-": case "_": case "s": zoom_by(store, 1 / 1.5); return true
    case "Home": case "0": zoom_to(store, ...store.bounds, 0); return true
    default: return false
  }
}

/** Zooms with Ctrl at share `at` of the view and moves with Shift, or sideways, over a width in pixels; returns false otherwise. */
export function view_wheel(store: TimeView, event: WheelEvent, at: number, width: number): boolean {
  if (event.ctrlKey || event.metaKey) {
    zoom_by(store, Math.exp(-event.deltaY / 250), at)
    return true
  }
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    pan_by(store, (event.deltaX == 0 ? event.deltaY : event.deltaX) / width)
    return true
  }
  return false
}
