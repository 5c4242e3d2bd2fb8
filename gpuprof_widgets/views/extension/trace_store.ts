import type * as p from "@bokehjs/core/properties"
import {Signal, Signal0} from "@bokehjs/core/signaling"
import {Model} from "@bokehjs/model"
import {Range1d} from "@bokehjs/models/ranges/range1d"

import {FAMILIES, KINDS, paint_of} from "./categories"
import {contrast, parse_colour} from "./colour"
import * as engine from "./engine"
import type {Answer, Argument, Question, State, Store, Window} from "./engine"
import {CHOICES, join, type Kernel, type Teller} from "./explorer"
import {Journal, type Layer, type Part} from "./journal"
import type {KeyedView} from "./keys"
import {decode_record, type Answers} from "./record"
import type {FindingLine, Focus, Linked, Remark, Selection, TraceState} from "./report_state"
import {EVIDENCE_MARGIN, place_of, same_selection, selection_of} from "./selection"
import {Theme} from "./theme"
import {zoom_to} from "./zoom"

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
  on_gpu: p.Property<boolean>
  extent: p.Property<[number, number] | null>
  window: p.Property<[number, number] | null>
  show_path: p.Property<boolean>
  visible: p.Property<Range1d>
}

export interface TraceStore extends p.AttrsOf<TraceStoreProps> {}

/** The one object through which the views are linked: the decoded trace, the brushed range, the selection. */
export class TraceStore extends Model implements Part, TraceState {
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
  selection: Selection | null = null
  /** Tells an `Explorer` in Python what has changed, where one has joined: before the views draw it, so that it answers meanwhile. */
  teller: Teller | null = null
  linked: Linked<TraceStore> = {stores: [this], choose: ([selection]) => this.choose(selection)}
  /** The range under a drag that is still going on, ns. */
  draft: [number, number] | null = null
  /** Returns the box of an event on the timeline: x, y, width, height in pixels of its drawing area. For the tests. */
  event_box: (row: number) => [number, number, number, number]
  selection_changed: Signal0<this>
  draft_changed: Signal0<this>
  was_reset: Signal0<this>
  /** The views of the report that have keys of their own. */
  readonly keyed_views = new Set<KeyedView>(["report"])
  /** Somebody wants to see all keys. */
  keys_called: Signal0<this>
  /** Calls the timeline onto the screen, with what is selected. */
  called_up: Signal0<this>
  /** Calls the table of functions onto the screen, with the function of this name, with what was found there for "". */
  functions_called: Signal<string, this>

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
    this.called_up = new Signal0(this, "called_up")
    this.functions_called = new Signal(this, "functions_called")
    this.journal = new Journal(this)
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
    for (const name of CHOICES) {
      this.connect(this.properties[name].change, () => this.teller?.tell())
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
    return this.data
  }

  /** Shows the place at which the report's author wants it to open, from which the views begin. */
  private open(): void {
    const focus = this.focus as Focus | null
    const place = focus == null ? null : place_of(this, focus)
    if (place != null) {
      this.setv({window: place.brushed == null ? null : this.clipped(place.brushed)}, {silent: true})
      zoom_to(this, ...place.shown, EVIDENCE_MARGIN)
    }
    this.selection = focus == null ? null : selection_of(this, focus, focus.text)
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

  /** Returns the text of a moment (ns). */
  moment(ns: number): string {
    return engine.format_moment(ns, this.data.header.tick_ns)
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
      case "selection": {
        const is_there = this.selection != null
        this.choose(null)
        return is_there
      }
      case "range": {
        const is_there = this.window != null
        this.brush(null)
        return is_there
      }
      case "zoom": return this.zoom_out()
    }
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
    this.choose(null)
    this.brush(null)
    this.zoom_out()
    this.was_reset.emit()
  }
}

/** Ends the worker of a report that has left the page. */
const workers = new FinalizationRegistry<Worker>((worker) => worker.terminate())
