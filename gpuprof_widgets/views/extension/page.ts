import type {HasProps} from "@bokehjs/core/has_props"
import type {ViewManager} from "@bokehjs/core/view_manager"
import type * as p from "@bokehjs/core/properties"
import {Document} from "@bokehjs/document"
import {add_document_standalone} from "@bokehjs/embed/standalone"
import {LinearAxis} from "@bokehjs/models/axes/linear_axis"
import {Column, ColumnView} from "@bokehjs/models/layouts/column"
import {Plot} from "@bokehjs/models/plots/plot"
import {NoOverlap} from "@bokehjs/models/policies/labeling"
import {Range1d} from "@bokehjs/models/ranges/range1d"
import type {Renderer} from "@bokehjs/models/renderers/renderer"
import {BasicTicker} from "@bokehjs/models/tickers/basic_ticker"
import type {UIElement} from "@bokehjs/models/ui/ui_element"

import {AnalysisTable} from "./analysis_table"
import {AnalysisTabs} from "./analysis_tabs"
import {CurvePlot} from "./curve_plot"
import {DeltaTable} from "./delta_table"
import {Details, TimelineTitle} from "./details"
import {DiffBar} from "./diff_bar"
import {DiffGraph} from "./diff_graph"
import {PYTHON_PANEL} from "./engine"
import {FlameBar} from "./flame_bar"
import {FlameGraph} from "./flame_graph"
import {Lines} from "./lines"
import {MemoryBar} from "./memory_bar"
import {MemoryPlot} from "./memory_plot"
import {MemoryTable} from "./memory_table"
import {Minimap} from "./minimap"
import {OpTable} from "./op_table"
import {
  page_data, type ComparisonData, type GroupData, type PageData, type ReportData, type ReportStoreData, type StoreData, type TimelinesData,
  type ViewName,
} from "./page_data"
import {start_near_screen} from "./near_screen"
import {hold_keys} from "./report_keys"
import {GroupHeader, ReportHeader} from "./report_header"
import {Search} from "./search"
import {StaticTables} from "./static_tables"
import {StoreGroup} from "./store_group"
import {EngineeringTimeFormatter} from "./time_plot"
import {Timeline} from "./timeline"
import {TimelineBar} from "./timeline_bar"
import {TraceStore} from "./trace_store"

/** Pixels left of the bars for the names of the tracks. */
const TRACK_NAMES = 168
const SCROLL_BAR = 16
const MINIMAP_HEIGHT = 46
const AXIS_HEIGHT = 26
const TIMELINE_HEIGHT = 300
const MEMORY_HEIGHT = 190
/** Pixels that each trace has in the overview of several. */
const STRIP_HEIGHT = 12
/** Pixels that all timelines of a page may take together before each of them scrolls on its own. */
const TALLEST = 360
const LEAST = 96
/** So many timelines open like that of a single trace; more of them have all tracks folded. */
const FEW = 2

const WIDE = {sizing_mode: "stretch_width"} as const

/** Makes a model of ours: their constructors take attributes as Bokeh's do, without types of their own. */
function create<M extends HasProps>(type: new (attributes: never) => M, attributes: Partial<Omit<M, "constructor">>): M {
  return new (type as new (attributes: object) => M)(attributes)
}

/** Builds the views and paints them in the browser's next task, so that the browser answers in between. */
export class PageView extends ColumnView {
  declare model: Page

  override async lazy_initialize(): Promise<void> {
    await super.lazy_initialize()
    await new Promise((resolve) => setTimeout(resolve))
  }
}

type PageProps = {content: p.Property<string>}

export interface Page extends p.AttrsOf<PageProps> {}

/** A whole report, built from data alone: `content` is JSON, as views/page.py sends it, and may come from anyone. */
export class Page extends Column {
  declare __view_type__: PageView

  static override __module__ = "gpuprof_widgets"

  static {
    this.prototype.default_view = PageView
    this.define<PageProps>(({Str}) => ({content: [Str, ""]}))
    this.override<Column.Props>({...WIDE, spacing: 0})
  }

  override initialize(): void {
    super.initialize()
    this.setv({children: parts_of(page_data(this.content)), content: ""}, {silent: true})
  }

  /** Shows a page in an element; throws where its data is damaged. */
  static async show(content: string, element: HTMLElement): Promise<ViewManager> {
    const page = create(Page, {content})
    const document = new Document()
    document.config.notifications = null  // it would stay in the browser's page when the report leaves it
    document.add_root(page)
    const views = await add_document_standalone(document, element, [element])
    const stores = [...page.references()].filter((model) => model instanceof TraceStore)
    stores.forEach(publish)
    hold_keys((views.roots[0] as PageView).el, stores[0].journal)
    return views
  }

  // For loader.js.
  static readonly hold_keys = hold_keys
  static readonly start_near_screen = start_near_screen
}

/** The stores of the page, which keeps none whose report has left it; all versions of this code on a page share them. */
type Published = {gpuprof?: {stores?: Set<WeakRef<TraceStore>>}}

/**
 * Puts a store into `window.gpuprof.reports[uid]`, where explorers find it and from which the browser tests read numbers. Its
 * views have been painted by then: they could not show before what an explorer chooses.
 */
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

function parts_of(data: PageData): UIElement[] {
  switch (data.kind) {
    case "report": return report(data)
    case "timelines": return timelines(data)
    case "comparison": return comparison(data)
  }
}

/** The header, and the views, joined by one store. */
function report({store: data, views, cards}: ReportData): UIElement[] {
  const store = store_of(data)
  const is_searched = views.some((view) => SEARCHED.includes(view))
  return [
    create(ReportHeader, {store, cards, ...WIDE}),
    ...is_searched ? [create(Search, {store, ...WIDE})] : [],
    ...views.flatMap((view) => VIEWS[view](store)),
  ]
}

/** The views in which a search lights up what it finds. */
const SEARCHED: ViewName[] = ["timeline", "flame_graph", "op_table"]

function store_of(data: ReportStoreData): TraceStore {
  const {rows_kept, findings, notes, focus, sort, functions_sort, start, end} = data
  const said = {rows_kept, findings, notes, focus, sort, functions_sort}
  return create(TraceStore, {...trace_of(data), ...said, visible: new Range1d({start, end})})
}

/** What every page says of a trace, and nothing else that a file may hold. */
function trace_of({uid, payload, label, on_gpu, remarks}: StoreData): StoreData {
  return {uid, payload, label, on_gpu, remarks}
}

/** Each view from top to bottom. */
const VIEWS: Record<ViewName, (store: TraceStore) => UIElement[]> = {
  timeline: timeline_view,
  lines: (store) => [create(Lines, {store, ...WIDE})],
  flame_graph: flame_graph_view,
  op_table: (store) => [create(OpTable, {store, ...WIDE})],
  memory: memory_view,
  analyses: analyses_view,
}

function timeline_view(store: TraceStore): UIElement[] {
  return [
    create(TimelineBar, {store, ...WIDE}),
    time_plot(store, create(Minimap, {store}), {height: MINIMAP_HEIGHT}),
    time_plot(store, create(Timeline, {store, axis_height: AXIS_HEIGHT}), {height: TIMELINE_HEIGHT, has_axis: true}),
    create(Details, {store, ...WIDE}),
  ]
}

function flame_graph_view(store: TraceStore): UIElement[] {
  const graph = create(FlameGraph, {store})
  return [create(FlameBar, {store, graph, ...WIDE}), flame_graph_plot(graph)]
}

/** The plot that a flame graph is drawn on; its renderer sets the height. */
function flame_graph_plot(graph: Renderer): Plot {
  return empty_plot(new Range1d({start: 0, end: 1}), graph, {height: 80, frame_align: false})
}

function memory_view(store: TraceStore): UIElement[] {
  const plot = create(MemoryPlot, {store})
  return [
    create(MemoryBar, {store, plot, ...WIDE}),
    time_plot(store, plot, {height: MEMORY_HEIGHT, has_axis: true}),
    create(MemoryTable, {store, plot, ...WIDE}),
  ]
}

/** The tabs, the curves, and other plots with the table. */
function analyses_view(store: TraceStore): UIElement[] {
  const tabs = create(AnalysisTabs, {store, active: store.functions_sort == "" ? "" : PYTHON_PANEL, ...WIDE})
  return [
    tabs,
    time_plot(store, create(CurvePlot, {store, tabs}), {height: 0, has_axis: true, visible: false}),
    create(AnalysisTable, {store, tabs, ...WIDE}),
  ]
}

/** Heading, timelines and tables of several traces. */
function timelines(data: TimelinesData): UIElement[] {
  const group = group_of(data, true)
  const [store] = group.stores
  return [
    ...group_header(data, group),
    ...plot_timelines(group, data.titles, data.busy),
    ...data.tables.length == 0 ? [] : [create(StaticTables, {store, tables: data.tables, ...WIDE})],
  ]
}

/** Both timelines of two runs on one scale, and below them what differs; cProfile knows no times. */
function comparison(data: ComparisonData): UIElement[] {
  const group = group_of(data, false)
  const [store] = group.stores
  const graph = create(DiffGraph, {runs: group, steps: data.steps})
  return [
    ...group_header(data, group),
    ...data.has_times ? plot_timelines(group, data.titles, "busy") : [],
    create(DiffBar, {store, graph, ...WIDE}),
    flame_graph_plot(graph),
    create(DeltaTable, {store, group, tables: data.tables, ...WIDE}),
  ]
}

/** The traces on the common clock, with one visible range. */
function group_of({stores, end}: GroupData, brushes_all: boolean): StoreGroup {
  const visible = new Range1d({start: 0, end})
  return create(StoreGroup, {stores: stores.map((data) => create(TraceStore, {...trace_of(data), extent: [0, end], visible})), brushes_all})
}

function group_header({label, findings, notes}: GroupData, group: StoreGroup): UIElement[] {
  const [store] = group.stores
  return [create(GroupHeader, {store, group, label, findings, notes, ...WIDE}), create(Search, {store, ...WIDE})]
}

/** Buttons, overview, and per trace its title and tracks, below one time axis. */
function plot_timelines({stores}: StoreGroup, titles: string[], busy: string): UIElement[] {
  const [first] = stores
  const is_many = stores.length > FEW
  const room = Math.max(Math.floor(TALLEST * (is_many ? 1 : 2) / stores.length), LEAST)
  return [
    create(TimelineBar, {store: first, ...WIDE}),
    time_plot(first, create(Minimap, {store: first}), {height: Math.max(MINIMAP_HEIGHT, STRIP_HEIGHT * stores.length)}),
    ...stores.flatMap((store, i): UIElement[] => {
      const axis_height = i == 0 ? AXIS_HEIGHT : 0
      const timeline = create(Timeline, {store, axis_height, max_height: room, compact: is_many, folds_to_fit: !is_many})
      return [
        create(TimelineTitle, {store, text: titles[i], busy, ...WIDE}),
        time_plot(store, timeline, {height: room, has_axis: axis_height > 0}),
      ]
    }),
  ]
}

type PlotAttributes = Partial<Pick<Plot.Attrs, "height" | "visible" | "frame_align">> & {has_axis?: boolean}

/** A plot over the store's visible range, with room for the names of the tracks. */
function time_plot({visible}: TraceStore, renderer: Renderer, {has_axis = false, ...attributes}: PlotAttributes): Plot {
  const plot = empty_plot(visible, renderer, {min_border_left: TRACK_NAMES, min_border_right: SCROLL_BAR, ...attributes})
  if (has_axis) {
    plot.add_layout(time_axis(), "above")
  }
  return plot
}

/** A plot as wide as the page, transparent, without axes, tools, borders and outline. */
function empty_plot(x_range: Range1d, renderer: Renderer, attributes: Partial<Plot.Attrs>): Plot {
  return new Plot({
    x_range,
    y_range: new Range1d({start: 0, end: 1}),
    renderers: [renderer],
    toolbar_location: null,
    background_fill_color: null,
    border_fill_color: null,
    outline_line_color: null,
    min_border: 0,
    match_aspect: false,
    ...WIDE,
    ...attributes,
  })
}

/** An axis in ns, µs, ms or s. */
function time_axis(): LinearAxis {
  return new LinearAxis({
    formatter: new EngineeringTimeFormatter(),
    ticker: new BasicTicker({desired_num_ticks: 7, min_interval: 1}), // times are whole ns
    major_label_policy: new NoOverlap(),
    major_label_text_font_size: "11px",
    major_tick_in: 0,
    major_tick_out: 4,
    minor_tick_line_color: null,
  })
}
