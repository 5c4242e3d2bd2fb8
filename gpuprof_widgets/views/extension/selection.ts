/** What is selected on a page, and what findings and cards point at. */

import type {Fact} from "./element"
import type {TraceStore} from "./trace_store"
import {zoom_to} from "./zoom"

/** What something is about: a time range (ns) and events, where it has any; of many events `rows` are the first. */
export type Evidence = {start: number | null, end: number | null, rows: number[], events: number}

export function has_evidence({start, rows}: Evidence): boolean {
  return start != null || rows.length > 0
}

/**
 * A finding: its title, and unfolded its sentence and remedy; what it costs (ns) and the share of the time; the `line` to
 * look at (an index into the header's lines, -1 for none), and the words of the link to it; the Python `function` that it
 * is about, where no event shows it, else "". `is_part`: of the cause of the finding above it. `of`: the index of its trace
 * among several.
 */
export type FindingLine = Evidence & {
  title: string, text: string, remedy: string, cost: number, share: number, line: number, look_at: string, function: string
  is_part?: boolean, of?: number
}

/** A selection, described by the view in which it was made; every view shows it in its own way. */
export type Selection = {
  source: "timeline" | "flame" | "table" | "lines" | "finding" | "memory" | "panel" | "search" | "explorer"
  /** The current one of the events: the one that was gone to, -1 for none. */
  row: number
  /** All selected events (ascending): the timeline highlights them. */
  rows: Int32Array
  /** Ranges that the timeline highlights where there is no row: start and end (ns), and track, -1 for all tracks. */
  ranges?: [number, number, number][]
  /** Keeps two selections apart: the key of the table row, the flame node, the event or the finding. */
  key: string
  /** The names that are meant (indices into the header's labels). */
  labels: Set<number>
  /** The text of the detail line; a finding's has names between backticks. */
  text: string
  /** Number of all events that are meant, where `rows` may be the first of them. */
  events?: number
  /** Its numbers in the brushed range. */
  facts?: () => Fact[]
  /** The test of names of a search. */
  matches?: (name: string) => boolean
}

/** On either side of a range that is shown: this part of it. */
export const EVIDENCE_MARGIN = 0.25

/** Zooms to a range, which is brushed, and selects the events. */
export function light_up(store: TraceStore, evidence: Evidence, text: string): void {
  const place = place_of(store, evidence)
  if (place != null) {
    store.brush(place.brushed)
    zoom_to(store, ...place.shown, EVIDENCE_MARGIN)
  }
  store.choose(selection_of(store, evidence, text))
}

/**
 * Returns the range that evidence brushes and the one that shows it, null where it is about no time. A moment, which has no
 * numbers, is shown with its events.
 */
export function place_of(store: TraceStore, evidence: Evidence): {brushed: [number, number] | null, shown: [number, number]} | null {
  const {start, end, rows} = evidence
  if (start == null || end == null) {
    return null
  }
  if (!is_moment(evidence)) {
    return {brushed: [start, end], shown: [start, end]}
  }
  const {data, visible} = store
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
export function selection_of(store: TraceStore, evidence: Evidence, text: string): Selection {
  const {start, end, rows, events} = evidence
  const labels = new Set(rows.map((row) => store.data.label[row]))
  const ranges: [number, number, number][] = is_moment(evidence) ? [[start!, end!, -1]] : []
  return {source: "finding", row: -1, rows: Int32Array.from(rows), ranges, key: text, labels, text, events}
}

export type Focus = Evidence & {text: string}

/** Returns the events by which other views mark a selection; of a block of memory the current one. */
export function marked_rows({source, row, rows}: Selection): Int32Array {
  return source == "memory" && row >= 0 ? Int32Array.of(row) : rows
}

/** The selected events, those in the visible time range if any are. */
export function lit_rows({data, selection, visible}: TraceStore): number[] {
  const rows = selection == null ? [] : selection.row >= 0 ? [selection.row] : [...selection.rows]
  const [start, end] = [data.tick(visible.start), data.tick(visible.end)]
  const seen = rows.filter((row) => data.end[row] >= start && data.ts[row] <= end)
  return seen.length > 0 ? seen : rows
}

export function same_selection(a: Selection | null, b: Selection | null): boolean {
  return a === b || (a != null && b != null && a.source == b.source && a.key == b.key && a.row == b.row)
}

/** Selects one event of the timeline; -1 selects nothing. */
export function select_event(store: TraceStore, row: number): void {
  const {data} = store
  store.choose(row < 0 ? null : {
    source: "timeline", row, rows: Int32Array.of(row), key: String(row), labels: new Set([data.label[row]]), text: data.name(row),
  })
}
