/** Selects what findings, cards and notes point at, and single events. */

import type {Evidence, Selection, TimeView, TraceState} from "./report_state"
import {zoom_to} from "./zoom"

export function has_evidence({start, rows}: Evidence): boolean {
  return start != null || rows.length > 0
}

/** On either side of a range that is shown: this part of it. */
export const EVIDENCE_MARGIN = 0.25

/** Zooms to a range, which is brushed, and selects the events. */
export function light_up(trace: TraceState, evidence: Evidence, text: string): void {
  const place = place_of(trace, evidence)
  if (place != null) {
    trace.brush(place.brushed)
    zoom_to(trace, ...place.shown, EVIDENCE_MARGIN)
  }
  trace.choose(selection_of(trace, evidence, text))
}

type Place = {brushed: [number, number] | null, shown: [number, number]}

/**
 * Returns the range that evidence brushes and the one that shows it, null where it is about no time. A moment, which has no
 * numbers, is shown with its events.
 */
export function place_of({data, visible}: TimeView, evidence: Evidence): Place | null {
  const {start, end, rows} = evidence
  if (start == null || end == null) {
    return null
  }
  if (!is_moment(evidence)) {
    return {brushed: [start, end], shown: [start, end]}
  }
  const half = rows.length > 0 ? 0 : (visible.end - visible.start) / (2 + 4 * EVIDENCE_MARGIN)
  const starts = rows.map((row) => data.ns(data.ts[row]))
  const ends = rows.map((row) => data.ns(data.end[row]))
  return {brushed: null, shown: [Math.min(start - half, ...starts), Math.max(end + half, ...ends)]}
}

/** Whether it is about a moment, which findings give as one nanosecond. */
function is_moment({start, end}: Evidence): boolean {
  return start != null && end != null && end - start <= 1
}

/** Selects the events, and marks a moment. */
export function selection_of({data}: TimeView, evidence: Evidence, text: string): Selection {
  const {start, end, rows, events} = evidence
  const labels = new Set(rows.map((row) => data.label[row]))
  const ranges: [number, number, number][] = is_moment(evidence) ? [[start!, end!, -1]] : []
  return {source: "finding", row: -1, rows: Int32Array.from(rows), ranges, key: text, labels, text, events}
}

/** Returns the events by which other views mark a selection; of a block of memory the current one. */
export function marked_rows({source, row, rows}: Selection): Int32Array {
  return source == "memory" && row >= 0 ? Int32Array.of(row) : rows
}

/** The selected events, those in the visible time range if any are. */
export function lit_rows({data, selection, visible}: TraceState): number[] {
  const rows = selection == null ? [] : selection.row >= 0 ? [selection.row] : [...selection.rows]
  const [start, end] = [data.tick(visible.start), data.tick(visible.end)]
  const seen = rows.filter((row) => data.end[row] >= start && data.ts[row] <= end)
  return seen.length > 0 ? seen : rows
}

export function same_selection(a: Selection | null, b: Selection | null): boolean {
  return a === b || (a != null && b != null && a.source == b.source && a.key == b.key && a.row == b.row)
}

/** Selects one event of the timeline; -1 selects nothing. */
export function select_event(trace: TraceState, row: number): void {
  const {data} = trace
  trace.choose(row < 0 ? null : {
    source: "timeline", row, rows: Int32Array.of(row), key: String(row), labels: new Set([data.label[row]]), text: data.name(row),
  })
}
