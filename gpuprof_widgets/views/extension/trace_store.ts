import type * as p from "@bokehjs/core/properties"
import {Signal, Signal0} from "@bokehjs/core/signaling"
import {Model} from "@bokehjs/model"
import {Range1d} from "@bokehjs/models/ranges/range1d"

import {FAMILIES, KINDS, paint_of} from "./categories"
import {contrast, parse_colour} from "./colour"
import type {Fact} from "./element"
import * as engine from "./engine"
import type {Answer, Argument, Question, State, Store, Window} from "./engine"
import {join, type Kernel, type Teller} from "./explorer"
import {Journal, type Layer, type Part} from "./journal"
import type {KeyedView} from "./keys"
import {decode_record, type Answers} from "./record"
import type {Remark} from "./remarks"
import {Ruler} from "./ruler"
import {Theme} from "./theme"

/** What something is about: a time range (ns) and events, where it has any; of many events `rows` are the first. */
export type Evidence = {start: number | null, end: number | null, rows: number[], events: number}

export function has_evidence({start, rows}: Evidence): boolean {
  return start != null || rows.length > 0
}

/**
 * A finding: its title, and unfolded its sentence and remedy; what it costs (ns) and the share of the time; the `line` to
 * look at (an index into the header's lines, -1 for none), and the words of the link to it. `of`: the index of its trace
 * among several.
 */
export type FindingLine = Evidence & {
  title: string, text: string, remedy: string, cost: number, share: number, line: number, look_at: string, of?: number
}

type Linked = {stores: TraceStore[], choose: (selections: (Selection | null)[]) => void}

type TraceStoreProps = {
  uid: p.Property<string>
  payload: p.Property<string>
  rows_kept: p.Property<boolean>
  label: p.Property<string>
  findings: p.Property<unknown[]>
  notes: p.Property<string[]>
  remarks: p.Property<unknown[]>
  focus: p.Property<unknown>
  sort: p.Property<string>
  group_by: p.Property<string>
  metric: p.Property<string>
  search: p.Property<string>
  functions_sort: p.Property<string>
  frames_of: p.Property<string>
  on_gpu: p.Property<boolean>
  extent: p.Property<[number, number] | null>
  window: p.Property<[number, number] | null>
  show_path: p.Property<boolean>
  visible: p.Property<Range1d>
}

export interface TraceStore extends p.AttrsOf<TraceStoreProps> {}

/** The one object through which the views are linked: the decoded trace, the brushed range, the selection. */
export class TraceStore extends Model implements Part {
  declare properties: Model.Props & TraceStoreProps

  static override __module__ = "gpuprof_widgets"

  /** The functions behind the views, for the console and the tests; see engine/index.ts. */
  static readonly engine = engine
  /** The colours of the bars, for the tests of contrast. */
  static readonly colours = {FAMILIES, KINDS, contrast, paint_of, parse_colour}

  /** The decoded trace; views may use it once `ready` has resolved. */
  data: Store
  ready: Promise<Store>
  /** What answers `ask`. */
  answers: Answers
  /** Answers about the whole trace, by question. */
  private readonly whole_answers = new Map<string, Promise<unknown>>()
  theme: Theme
  /** The way back to earlier states; several traces on one time axis share one. */
  journal: Journal
  /** Measures on the timeline; shared like the journal. */
  ruler: Ruler
  selection: Selection | null = null
  /** Tells an `Explorer` in Python what has changed, where one has joined: before the views draw it, so that it answers meanwhile. */
  teller: Teller | null = null
  /** The traces of the page; they are selected together. */
  linked: Linked = {stores: [this], choose: ([selection]) => this.choose(selection)}
  /** The range under a drag that is still going on, ns. */
  draft: [number, number] | null = null
  /** Returns the box of an event on the timeline: x, y, width, height in pixels of its drawing area. For the tests. */
  event_box: (row: number) => [number, number, number, number] | null
  selection_changed: Signal0<this>
  draft_changed: Signal0<this>
  was_reset: Signal0<this>
  /** What takes the keys of a view, by the view. */
  readonly surfaces = new Map<KeyedView, HTMLElement>()
  /** Somebody wants to see all keys. */
  keys_called: Signal0<this>
  /** Calls the timeline onto the screen, with what is selected; says whether it takes the focus. */
  called_up: Signal<boolean, this>

  static {
    this.define<TraceStoreProps>(({Bool, Float, List, Nullable, Ref, Str, Tuple, Unknown}) => ({
      uid: [Str, ""],
      payload: [Str, ""],
      rows_kept: [Bool, true],
      label: [Str, ""],
      findings: [List(Unknown), []],
      notes: [List(Str), []],
      remarks: [List(Unknown), []],
      focus: [Nullable(Unknown), null],
      sort: [Str, "device_self"],
      group_by: [Str, "name"],
      metric: [Str, "cpu"],
      search: [Str, ""],
      functions_sort: [Str, ""],
      frames_of: [Str, "Python"],
      on_gpu: [Bool, false],
      extent: [Nullable(Tuple(Float, Float)), null],
      window: [Nullable(Tuple(Float, Float)), null],
      show_path: [Bool, false],
      visible: [Ref(Range1d)],
    }))
  }

  override initialize(): void {
    super.initialize()
    this.theme = new Theme(this)
    this.selection_changed = new Signal0(this, "selection_changed")
    this.draft_changed = new Signal0(this, "draft_changed")
    this.was_reset = new Signal0(this, "was_reset")
    this.keys_called = new Signal0(this, "keys_called")
    this.called_up = new Signal(this, "called_up")
    this.journal = new Journal(this)
    this.ruler = new Ruler(this, this.journal)
    this.ready = this.decode()
  }

  override connect_signals(): void {
    super.connect_signals()
    const {window, show_path} = this.properties
    for (const signal of [window.change, show_path.change, this.visible.change, this.selection_changed]) {
      this.connect(signal, () => {
        this.teller?.tell()
        this.journal.note()
      })
    }
  }

  private async decode(): Promise<Store> {
    const {data, answers} = await decode_record(this.payload)
    this.data = data
    this.answers = answers
    if (answers.worker != null) {
      workers.register(this, answers.worker)
    }
    this.setv({payload: ""}, {silent: true})  // the text is of no further use and may be megabytes
    this.open()
    this.journal.start()
    publish(this)
    return this.data
  }

  /** Shows the place at which the report's author wants it to open, from which the views begin. */
  private open(): void {
    const place = this.focus as Focus | null
    if (place?.start != null && place.end != null) {
      this.setv({window: this.clipped([place.start, place.end])}, {silent: true})
      zoom_to(this, place.start, place.end, EVIDENCE_MARGIN)
    }
    this.selection = place == null ? null : selection_of(this, place, place.text)
  }

  get finding_lines(): FindingLine[] {
    return this.findings as FindingLine[]
  }

  get remark_lines(): Remark[] {
    return this.remarks as Remark[]
  }

  /** First and last nanosecond of the trace. */
  get trace_bounds(): [number, number] {
    const {start_ns, end_ns} = this.data.header
    return [start_ns, Math.max(end_ns, start_ns + 1)]
  }

  /** The range that the views can show; of several traces on one time axis that of all together. */
  get bounds(): [number, number] {
    return this.extent ?? this.trace_bounds
  }

  /** The range of the flame graph and the tables, in ticks: the brushed one or everything. */
  get range(): Window {
    const {data, window} = this
    return window == null ? data.whole : data.snap({start: data.tick(window[0]), end: data.tick(window[1])})
  }

  /** The range under a drag or the brushed one (ns), null for the whole trace; with its length and the GPUs' busy times. */
  get range_totals(): engine.Totals & {range: [number, number] | null, start: number, end: number} {
    const range = this.draft ?? this.window
    const [start, end] = range ?? this.trace_bounds
    return {range, start, end, ...engine.totals(this.data, {start: this.data.tick(start), end: this.data.tick(end)})}
  }

  /**
   * Answers a question about the trace or a range of it. An asker that asks again before its turn has come gets the
   * later answer alone.
   */
  ask<Q extends Question>(question: Q, argument: Argument<Q>, asker: object): Promise<Answer<Q>> {
    const {data: {whole}, whole_answers} = this
    if (!("window" in argument) || argument.window.start != whole.start || argument.window.end != whole.end) {
      return this.answers.ask(question, argument, asker)
    }
    const key = `${question} ${JSON.stringify(argument)}`
    if (!whole_answers.has(key)) {
      const answer = this.answers.ask(question, argument, {})
      whole_answers.set(key, answer)
      answer.catch(() => whole_answers.delete(key))
    }
    return whole_answers.get(key) as Promise<Answer<Q>>
  }

  /** Returns the text of a moment (ns): to a tenth of what is in view, or of `span` (ns) where that is shorter. */
  moment(ns: number, span: number = Infinity): string {
    const {start, end} = this.visible
    return engine.format_moment(ns, Math.min(span, end - start), this.data.header.tick_ns)
  }

  /** Brushes a range (ns); null takes the brush away. Returns at once, the views follow. */
  brush(range: [number, number] | null): void {
    this.drag(null)
    this.window = range == null ? null : this.clipped(range)
  }

  drag(range: [number, number] | null): void {
    this.draft = range == null ? null : this.clipped(range)
    this.draft_changed.emit()
  }

  /** Returns a range that ends on whole ticks, the resolution of the page: so sums are exact. */
  clipped([a, b]: [number, number]): [number, number] {
    const {data} = this
    const [first, last] = this.bounds.map((ns, i) => i == 0 ? Math.floor(data.tick(ns)) : Math.ceil(data.tick(ns)))
    const snap = (ns: number): number => Math.min(Math.max(Math.round(data.tick(ns)), first), last)
    const start = snap(Math.min(a, b))
    return [data.ns(start), data.ns(Math.max(snap(Math.max(a, b)), Math.min(start + 1, last)))]
  }

  choose(selection: Selection | null): void {
    if (!same_selection(this.selection, selection)) {
      this.selection = selection
      this.selection_changed.emit()
    }
  }

  remember(): State {
    const {selection, window, show_path, visible: {start, end}} = this
    return {
      marks: [selection, ...window ?? [null, null], show_path, start, end],
      restore: () => {
        this.brush(window)
        this.choose(selection)
        this.show_path = show_path
        this.visible.setv({start, end})  // last: a selection may move the view
      },
    }
  }

  clear(layer: Layer): boolean {
    switch (layer) {
      case "measure": return false
      case "selection": return this.clear_selection()
      case "range": return this.clear_range()
      case "zoom": return this.zoom_out()
    }
  }

  private clear_selection(): boolean {
    const is_there = this.selection != null
    this.choose(null)
    return is_there
  }

  private clear_range(): boolean {
    const is_there = this.window != null
    this.brush(null)
    return is_there
  }

  /** Shows everything, without the critical path. */
  private zoom_out(): boolean {
    const [start, end] = this.bounds
    const is_zoomed = this.show_path || this.visible.start != start || this.visible.end != end
    this.show_path = false
    this.visible.setv({start, end})
    return is_zoomed
  }

  /** Joins the report with an `Explorer` in Python. */
  explore(kernel: Kernel): void {
    join(this, kernel)
  }

  /** Restores the state in which the report was opened. */
  reset(): void {
    this.ruler.stop()
    this.choose(null)
    this.brush(null)
    this.zoom_out()
    this.was_reset.emit()
  }
}

/** Ends the worker of a report that has left the page. */
const workers = new FinalizationRegistry<Worker>((worker) => worker.terminate())

/** The stores of the page, which keeps none whose report has left it; all versions of this code on a page share them. */
type Published = {gpuprof?: {stores?: Set<WeakRef<TraceStore>>}}

/** Puts a store into `window.gpuprof.reports[uid]`, where explorers find it and from which the browser tests read numbers. */
function publish(store: TraceStore): void {
  const page = (window as Published).gpuprof ??= {}
  const stores = page.stores ??= new Set()
  stores.add(new WeakRef(store))
  const reports = (): Record<string, TraceStore> => {
    const living = [...stores].map((held) => held.deref()).filter((store) => store != null)
    return Object.fromEntries(living.map((store) => [store.uid, store]))
  }
  Object.defineProperty(page, "reports", {configurable: true, get: reports})
}

/** Shows a range from `start` (ns), at least four ticks long, inside the trace. */
function show(store: TraceStore, start: number, span: number): void {
  const [low, high] = store.bounds
  const width = Math.min(Math.max(span, shortest_span(store)), high - low)
  const first = Math.min(Math.max(start, low), high - width)
  store.visible.setv({start: first, end: first + width})
}

function shortest_span(store: TraceStore): number {
  return 4 * store.data.header.tick_ns
}

/** Moves the visible range by a share of its width; it never leaves the trace. */
export function pan_by(store: TraceStore, share: number): void {
  const {start, end} = store.visible
  show(store, start + share * (end - start), end - start)
}

/** Moves the visible range so that it starts at `start` (ns). */
export function pan_to(store: TraceStore, start: number): void {
  show(store, start, store.visible.end - store.visible.start)
}

/** Zooms by a factor (above 1: closer) around the point at share `at` of the width. */
export function zoom_by(store: TraceStore, factor: number, at: number = 0.5): void {
  const {start, end} = store.visible
  const span = (end - start) / factor
  const fixed = start + at * (end - start)
  show(store, fixed - at * Math.max(span, shortest_span(store)), span)
}

/** Shows a range (ns) with a margin on both sides, as a share of its length. */
export function zoom_to(store: TraceStore, start: number, end: number, margin: number = 0.05): void {
  const span = Math.max(end - start, store.data.header.tick_ns)
  show(store, start - margin * span, span * (1 + 2 * margin))
}

/** Moves the view only where a range (ns) lies outside of it. */
export function reveal(store: TraceStore, start: number, end: number): void {
  const view = store.visible
  if (end < view.start || start > view.end) {
    const span = view.end - view.start
    pan_to(store, end - start > span ? start : (start + end - span) / 2)
  }
}

/** Handles the keys that all time axes of the report share; returns false for other keys. */
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

/** Zooms with Ctrl at share `at` of the view and moves with Shift, or sideways, over a width in pixels; returns false otherwise. */
export function view_wheel(store: TraceStore, event: WheelEvent, at: number, width: number): boolean {
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
const EVIDENCE_MARGIN = 0.25

/** Zooms to a range, which is brushed, and selects the events. */
export function light_up(store: TraceStore, evidence: Evidence, text: string): void {
  const {start, end} = evidence
  if (start != null && end != null) {
    store.brush([start, end])
    zoom_to(store, start, end, EVIDENCE_MARGIN)
  }
  store.choose(selection_of(store, evidence, text))
}

function selection_of(store: TraceStore, {rows, events}: Evidence, text: string): Selection {
  const labels = new Set(rows.map((row) => store.data.label[row]))
  return {source: "finding", row: -1, rows: Int32Array.from(rows), key: text, labels, text, events}
}

type Focus = Evidence & {text: string}

/** Returns the events by which other views mark a selection; of a block of memory the current one. */
export function marked_rows({source, row, rows}: Selection): Int32Array {
  return source == "memory" && row >= 0 ? Int32Array.of(row) : rows
}

function same_selection(a: Selection | null, b: Selection | null): boolean {
  return a === b || (a != null && b != null && a.source == b.source && a.key == b.key && a.row == b.row)
}

/** Selects one event of the timeline; -1 selects nothing. */
export function select_event(store: TraceStore, row: number): void {
  const {data} = store
  store.choose(row < 0 ? null : {
    source: "timeline", row, rows: Int32Array.of(row), key: String(row), labels: new Set([data.label[row]]), text: data.name(row),
  })
}
