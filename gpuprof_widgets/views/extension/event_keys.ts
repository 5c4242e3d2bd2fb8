/** What the timeline's keys do with the selected event. */

import {has_path, step_aside, step_level} from "./engine"
import type {TraceState} from "./report_state"
import {select_event} from "./selection"
import {zoom_to} from "./zoom"

/** Handles the keys about the selected event, and about what stands in for it where there is none; returns false for others. */
export function event_key(store: TraceState, {key, shiftKey}: KeyboardEvent): boolean {
  const row = store.selection?.row ?? -1
  if (shiftKey && key.startsWith("Arrow")) {
    step_event(store, row, key)
    return true
  }
  switch (key) {
    case "f": focus_event(store, row); return true
    case "r": brush_event(store, row); return true
    case "c": store.show_path = !store.show_path && has_path(store.data); return true
    default: return false
  }
}

function step_event(store: TraceState, row: number, key: string): void {
  const next = key == "ArrowLeft" ? step_aside(store.data, row, -1)
    : key == "ArrowRight" ? step_aside(store.data, row, 1)
      : step_level(store.data, row, key == "ArrowUp" ? -1 : 1)
  if (next >= 0) {
    select_event(store, next)
  }
}

function focus_event(store: TraceState, row: number): void {
  if (row >= 0) {
    zoom_to_event(store, row)
  } else if (store.window != null) {
    zoom_to(store, ...store.window)
  }
}

/** Shows an event with some of what is around it. */
export function zoom_to_event(store: TraceState, row: number): void {
  const {data} = store
  zoom_to(store, data.ns(data.ts[row]), data.ns(data.end[row]), 0.2)
}

function brush_event(store: TraceState, row: number): void {
  const {data} = store
  store.brush(row >= 0 ? [data.ns(data.ts[row]), data.ns(data.end[row])] : [store.visible.start, store.visible.end])
}
