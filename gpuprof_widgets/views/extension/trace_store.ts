import type * as p from "@bokehjs/core/properties"
import {Signal0} from "@bokehjs/core/signaling"
import {Model} from "@bokehjs/model"
import {Range1d} from "@bokehjs/models/ranges/range1d"

import * as engine from "./engine"
import {KINDS, paint_of} from "./categories"
import {contrast, parse_colour} from "./colour"
import {Store} from "./engine"
import type {Window} from "./engine"
import {same_selection} from "./selection"
import type {Selection} from "./selection"
import {Theme} from "./theme"

/** One sentence of the findings, with the time range (ns) and the events that show it where there are any;
 * of many events `rows` are the first; `of`: which of several traces it is about. */
export type FindingLine = {
  text: string, remedy: string, start: number | null, end: number | null, rows: number[], events: number, of?: number
}

/** The one object through which the views are linked: the decoded trace, the brushed range, the selection. */
export class TraceStore extends Model {
  declare properties: TraceStore.Props

  static override __module__ = "gpuprof_widgets.views.models"

  /** What answers the views' questions, for the console and the tests; see engine/index.ts. */
  static readonly engine = engine
  /** What colours the bars, for the tests of contrast. */
  static readonly colours = {KINDS, contrast, paint_of, parse_colour}

  /** The decoded trace; views may use it once `ready` has resolved. */
  data: Store
  ready: Promise<Store>
  theme: Theme
  selection: Selection | null = null
  /** The range under a drag that is still going on, ns. */
  draft: [number, number] | null = null
  /** Where the timeline shows an event: x, y, width, height in pixels of its drawing area. For the tests. */
  event_box: (row: number) => [number, number, number, number] | null
  selection_changed: Signal0<this>
  draft_changed: Signal0<this>
  was_reset: Signal0<this>

  constructor(attrs?: Partial<TraceStore.Attrs>) {
    super(attrs)
  }

  static {
    this.define<TraceStore.Props>(({Bool, Float, List, Nullable, Ref, Str, Tuple, Unknown}) => ({
      uid: [Str, ""],
      payload: [Str, ""],
      label: [Str, ""],
      findings: [List(Unknown), []],
      notes: [List(Str), []],
      sort: [Str, "device_self"],
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
    this.ready = this.decode()
  }

  override destroy(): void {
    this.theme.detach()
    withdraw(this)
    super.destroy()
  }

  private async decode(): Promise<Store> {
    this.data = await Store.decode(this.payload)
    this.setv({payload: ""}, {silent: true})  // the text is of no further use and may be megabytes
    publish(this)
    return this.data
  }

  get finding_lines(): FindingLine[] {
    return this.findings as FindingLine[]
  }

  /** First and last nanosecond of the trace. */
  get own_bounds(): [number, number] {
    const {start_ns, end_ns} = this.data.header
    return [start_ns, Math.max(end_ns, start_ns + 1)]
  }

  /** The range that the views can show: beside other traces on one scale it is that of all together. */
  get bounds(): [number, number] {
    return this.extent ?? this.own_bounds
  }

  /** The range that flame graph and table are about, in ticks: the brushed one or everything. */
  get range(): Window {
    const {data, window} = this
    return window == null ? data.whole : data.snap({start: data.tick(window[0]), end: data.tick(window[1])})
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

  /** Ticks are what the page resolves: a brush ends on whole ticks so that sums are exact. */
  private clipped([a, b]: [number, number]): [number, number] {
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

  /** Everything as it was when the report was opened. */
  reset(): void {
    this.choose(null)
    this.brush(null)
    this.show_path = false
    const [start, end] = this.bounds
    this.visible.setv({start, end})
    this.was_reset.emit()
  }
}

export namespace TraceStore {
  export type Attrs = p.AttrsOf<Props>
  export type Props = Model.Props & {
    uid: p.Property<string>
    payload: p.Property<string>
    label: p.Property<string>
    findings: p.Property<unknown[]>
    notes: p.Property<string[]>
    sort: p.Property<string>
    functions_sort: p.Property<string>
    frames_of: p.Property<string>
    on_gpu: p.Property<boolean>
    extent: p.Property<[number, number] | null>
    window: p.Property<[number, number] | null>
    show_path: p.Property<boolean>
    visible: p.Property<Range1d>
  }
}

export interface TraceStore extends TraceStore.Attrs {}

type Page = {reports?: Record<string, TraceStore>}

/** `window.gpuprof.reports[uid]`: what the browser tests read numbers from. */
function reports(): Record<string, TraceStore> {
  const page = window as unknown as {gpuprof?: Page}
  page.gpuprof ??= {}
  page.gpuprof.reports ??= {}
  return page.gpuprof.reports
}

function publish(store: TraceStore): void {
  reports()[store.uid] = store
}

function withdraw(store: TraceStore): void {
  if (reports()[store.uid] === store) {
    delete reports()[store.uid]
  }
}
