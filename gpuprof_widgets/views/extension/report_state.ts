/** What the parts of a report share, as types: the trace, what is visible, brushed and selected, findings and notes. */

import type {Range1d} from "@bokehjs/models/ranges/range1d"

import type {Fact} from "./element"
import type {Store} from "./engine"

/** The part of a trace that all time axes of a report show; times in ns. */
export type TimeView = {
  readonly data: Store
  readonly visible: Range1d
  /** The range that the views can show; of several traces on one time axis that of all together. */
  readonly bounds: [number, number]
}

/** A trace in a report: what of it is visible, brushed and selected. */
export type TraceState = TimeView & {
  /** The brushed range, ns. */
  readonly window: [number, number] | null
  readonly selection: Selection | null
  show_path: boolean
  /** The traces of the page, which are selected together. */
  readonly linked: Linked<TraceState>
  brush(range: [number, number] | null): void
  choose(selection: Selection | null): void
}

export type Linked<State> = {stores: State[], choose: (selections: (Selection | null)[]) => void}

/** A note of the report's author, on a range of time or a moment (ns). */
export type Remark = {text: string, start: number, end: number}

/** What something is about: a time range (ns) and events, where it has any; of many events `rows` are the first. */
export type Evidence = {start: number | null, end: number | null, rows: number[], events: number}

/** The place at which a report opens. */
export type Focus = Evidence & {text: string}

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
