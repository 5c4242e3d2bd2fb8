import type * as p from "@bokehjs/core/properties"

import {AnalysisTabs} from "./analysis_tabs"
import {button, element, Tooltip, type Fact} from "./element"
import {cell_text, format_count, panel, PYTHON_PANEL, type Cell, type Column, type Order, type PanelColumn, type PanelData, type Window} from "./engine"
import {Panel} from "./panel"
import {Scatter} from "./scatter"
import {marked_rows} from "./selection"
import {stacked_bars} from "./stacked_bars"
import {TableView} from "./table"
import {TABLE_CSS} from "./table_look"
import type {TraceStore} from "./trace_store"
import {reveal, zoom_to} from "./zoom"

/** A row of an analysis, `at` its place in the table, and the values of all rows in the same range by column. */
type PanelRow = {at: number, values: Cell[][]}

const DOUBLE_CLICK_MS = 400

/** Bars or points, and the table, of the shown analysis in the brushed range. */
export class AnalysisTableView extends TableView<PanelRow> {
  declare model: AnalysisTable

  protected override readonly css = TABLE_CSS + PLOTS_CSS
  protected override readonly first_rows = 10
  private data: PanelData
  /** The event of the selected row to which the view moved last. */
  private jumped: {key: string, number: number} = {key: "", number: -1}
  private clicked = {row: -1, time: -Infinity}
  private tooltip: Tooltip | null = null
  private scatter: Scatter
  private plot: HTMLElement
  private zoom_button: HTMLButtonElement
  private content: HTMLElement
  private plot_observer: ResizeObserver

  override connect_signals(): void {
    super.connect_signals()
    this.connect(this.model.tabs.properties.active.change, () => this.show_table())
    this.connect(this.store.functions_called, (name) => this.show_functions(name))
  }

  override remove(): void {
    this.plot_observer?.disconnect()
    this.tooltip?.remove()
    super.remove()
  }

  override after_render(): void {
    super.after_render()
    this.tooltip ??= new Tooltip(this.root.el, this.root.shadow_el)
  }

  protected get title(): string {
    return this.data?.title ?? ""
  }

  /** The tab is the heading. */
  protected override heading_of_table(): Node[] {
    return []
  }

  protected override build_content(): Node[] {
    this.scatter = new Scatter({
      choose: (row, event) => this.choose_rows([row], event),
      hover: (row, event) => this.hover_row(row, event),
      leave: () => this.tooltip?.hide(),
    })
    this.plot = element("div", {})
    this.plot_observer = new ResizeObserver(() => this.draw_points())
    this.plot_observer.observe(this.plot)
    this.content = element("div", {role: "tabpanel"}, this.plot)
    this.content.append(...super.build_content())
    return [this.content]
  }

  protected override tools(): Node[] {
    this.zoom_button = button("Zoom to event", {title: "Zoom to the longest event of the selected row; click again for the next longest (f)"}, () => this.jump())
    return [this.zoom_button]
  }

  /** Shows the functions: the one of this name is selected; "": with those that were found. */
  private show_functions(name: string): void {
    const {store, model: {tabs}} = this
    const data = panel(store.data, PYTHON_PANEL)
    if (data == null) {
      return
    }
    tabs.active = PYTHON_PANEL
    const row = Array.from({length: data.length}, (_, at) => data.row_name(at)).indexOf(name)
    if (row >= 0) {
      select_rows(store, data, [row], data.row_text(row))
    }
    this.call_up()
  }

  /** Shows another analysis, if there is any. */
  protected override show_table(): void {
    if (this.model.tabs.shown != null) {
      super.show_table()
    }
  }

  protected override open_table(): void {
    this.data = this.model.tabs.shown!
    this.zoom_button.hidden = !this.data.has_events
    this.content.setAttribute("aria-label", this.data.title)
    super.open_table()
  }

  protected override first_order(): Order | null {
    const {data, store: {functions_sort}} = this
    const key = data.name == PYTHON_PANEL && data.at(functions_sort) >= 0 ? functions_sort : data.sort
    const at = data.at(key)
    return at < 0 ? null : {key, descending: data.columns[at].unit != "text"}
  }

  protected list_columns(): Column<PanelRow>[] {
    return this.data.columns.map((column, at) => ({
      key: column.key, label: column.label, unit: column.unit, value: ({at: row, values}) => values[at][row],
    }))
  }

  protected async list_rows(range: Window | null): Promise<PanelRow[]> {
    const {store, model: {tabs: {shown: data}}} = this
    if (data == null) {
      return [] // no analysis has anything to show
    }
    if (range == null || !data.has_events) {
      const values = data.values(null)
      return Array.from({length: data.length}, (_, at) => ({at, values}))
    }
    const {values, present} = await store.ask("panel", {window: range, name: data.name}, this)
    return present.map((at) => ({at, values}))
  }

  /** The values of all rows in the range, by column. */
  private get values(): Cell[][] {
    return this.rows[0]?.values ?? this.data.values(null)
  }

  protected override get zooms_on_double_click(): boolean {
    return this.data.has_events
  }

  protected override on_marked(): void {
    this.zoom_button.disabled = this.chosen_here() < 0
    this.draw(selected_rows(this.store, this.data))
  }

  private draw(chosen: Set<number>): void {
    const {data, values} = this
    const rows = this.rows.map(({at}) => at)
    if (data.points != null) {
      this.plot.replaceChildren(this.scatter.el)
      this.draw_points()
      return
    }
    this.plot.replaceChildren(...stacked_bars(data, values, rows, chosen, this.store.theme.palette.background, {
      choose: (part, event) => this.choose_rows(part, event),
      hover: (title, words, event) => this.tooltip?.show(title, [["Time", words]], event.clientX, event.clientY),
      leave: () => this.tooltip?.hide(),
    }))
  }

  private draw_points(): void {
    const {data, values, store} = this
    if (data?.points != null && this.plot.clientWidth > 0) {
      this.scatter.draw(data, values, this.rows.map(({at}) => at), selected_rows(store, data), this.plot.clientWidth)
    }
  }

  protected summary(count: number): string {
    const {data: {columns, has_events, cut}, store: {window}} = this
    const rows = format_count(count, "row")
    if (window == null || !has_events) {
      return `${rows} · whole trace`
    }
    if (cut) {
      return `${rows} · whole trace, because it has too many events to count in a range`
    }
    return `${rows} · ${this.where}${columns.some((column) => this.is_of_whole_run(column)) ? " · underlined columns cover the whole trace" : ""}`
  }

  private is_of_whole_run(column: PanelColumn): boolean {
    return this.store.window != null && this.data.has_events && column.unit != "text" && !this.data.follows(column)
  }

  protected override ignores_range({key}: Column<PanelRow>): boolean {
    return this.is_of_whole_run(this.data.columns[this.data.at(key)])
  }

  protected override is_selectable(_row: PanelRow): boolean {
    return this.data.has_events || is_found_by_name(this.data)
  }

  /** Nothing lies below this table. */
  protected override get lists_rows_selected_elsewhere(): boolean {
    return true
  }

  protected key_of({at}: PanelRow): string {
    return String(at)
  }

  protected chosen_keys(): Set<string> {
    return new Set([...selected_rows(this.store, this.data)].map(String))
  }

  protected choose({at}: PanelRow, event: MouseEvent | KeyboardEvent): void {
    this.choose_rows([at], event)
  }

  /** A click selects or releases; a double click selects and zooms to an event. */
  private choose_rows(rows: number[], event: MouseEvent | KeyboardEvent): void {
    if (event instanceof MouseEvent && this.is_second(rows[0], event.timeStamp)) {
      this.select(rows)
      this.jump()
    } else if (this.store.selection?.key == rows_key(this.data, rows)) {
      this.store.choose(null)
    } else {
      this.select(rows)
    }
  }

  /** Whether a click on a row is the second of two: the browser cannot tell, the row was drawn anew in between. */
  private is_second(row: number, time: number): boolean {
    const second = this.clicked.row == row && time - this.clicked.time < DOUBLE_CLICK_MS
    this.clicked = {row, time: second ? -Infinity : time}
    return second
  }

  private select(rows: number[]): void {
    const text = rows.length == 1 ? this.data.row_text(rows[0]) : `${this.data.title}: ${format_count(rows.length, "row")}`
    select_rows(this.store, this.data, rows, text)
  }

  /** The first of the rows that were selected in this table, -1 for none. */
  private chosen_here(): number {
    const {selection} = this.store
    return selection?.source == "panel" && selection.key.startsWith(rows_key(this.data, [])) ? [...selected_rows(this.store, this.data)][0] : -1
  }

  /** Zooms to the selected row's longest event, and from there to the next longest. */
  private jump(): void {
    const row = this.chosen_here()
    if (row >= 0 && this.data.has_events) {
      const key = rows_key(this.data, [row])
      const number = this.jumped.key == key ? this.jumped.number + 1 : 0
      this.jumped = {key, number}
      const count = jump_to_event(this.store, this.data, row, number)
      this.status.textContent = `${this.data.row_name(row)}: event ${number % count + 1} of ${count}, longest first`
    }
  }

  private hover_row(row: number, event: MouseEvent): void {
    const facts = this.data.columns.map(({label, unit}, at): Fact => [label, cell_text(this.values[at][row], unit)])
    const known = facts.slice(1).filter(([, words]) => words != "" && words != "–")
    this.tooltip?.show(this.data.row_name(row), known, event.clientX, event.clientY)
  }

  protected override on_row_key({at}: PanelRow, {key}: KeyboardEvent): boolean {
    const jumps = key == "f" && this.data.has_events
    if (jumps) {
      this.select([at])
      this.jump()
    }
    return jumps
  }
}

type AnalysisTableProps = {tabs: p.Property<AnalysisTabs>}

export interface AnalysisTable extends p.AttrsOf<AnalysisTableProps> {}

export class AnalysisTable extends Panel {
  static {
    this.prototype.default_view = AnalysisTableView
    this.define<AnalysisTableProps>(({Ref}) => ({tabs: [Ref(AnalysisTabs)]}))
  }
}

/** Number of a selected row's longest events of which one should be in view. */
const MOST_TRIED = 1_000

/** Selects rows of a panel: their events light up, and one of them is brought into view. */
function select_rows(store: TraceStore, data: PanelData, panel_rows: number[], text: string): void {
  const rows = Int32Array.from(new Set(panel_rows.flatMap((row) => [...data.slices(row)]))).sort()
  const ranges = panel_rows.flatMap((row) => data.ranges(row)).sort((a, b) => a[0] - b[0])
  if (rows.length + ranges.length > 0 || is_found_by_name(data)) {
    const row_alone = rows.length == 1 && ranges.length == 0 ? rows[0] : -1
    const labels = new Set(Array.from(rows, (slice) => store.data.label[slice]))
    store.choose({source: "panel", row: row_alone, rows, ranges, key: rows_key(data, panel_rows), labels, text})
    bring_into_view(store, panel_rows.flatMap((row) => data.longest(row).slice(0, MOST_TRIED)))
  }
}

/** Moves the view to the first of some ranges if none of them is in view. */
function bring_into_view(store: TraceStore, ranges: [number, number][]): void {
  const {start, end} = store.visible
  if (ranges.length > 0 && !ranges.some(([from, to]) => to >= start && from <= end)) {
    reveal(store, ...ranges[0])
  }
}

/** Zooms to one of a row's events: the longest is number 0. Returns how many there are. */
function jump_to_event(store: TraceStore, data: PanelData, row: number, number: number): number {
  const ranges = data.longest(row)
  if (ranges.length > 0) {
    zoom_to(store, ...ranges[number % ranges.length], 0.5)
  }
  return ranges.length
}

/** Returns the rows of a panel that hold the selection, made here or in another view. */
function selected_rows(store: TraceStore, data: PanelData): Set<number> {
  const {selection} = store
  if (selection == null) {
    return new Set()
  }
  if (selection.source == "panel" && selection.key.startsWith(`${data.name} `)) {
    return new Set(selection.key.slice(data.name.length + 1).split(",").map(Number))
  }
  if (is_found_by_name(data)) {
    const {matches = () => false} = selection
    return new Set(Array.from({length: data.length}, (_, row) => row).filter((row) => matches(data.row_name(row))))
  }
  const slices = marked_rows(selection)
  const holding = data.holding(slices)
  return new Set(holding.length > 0 ? holding : data.holding(caused_on_gpu(store, slices)))
}

/** Whether the rows are functions that cProfile alone knows: they have no events, and a search finds them by their names. */
function is_found_by_name({name, has_events}: PanelData): boolean {
  return name == PYTHON_PANEL && !has_events
}

/** The GPU work of some ops or launches. */
function caused_on_gpu({data}: TraceStore, rows: Int32Array): number[] {
  const causes = data.mask_of(rows)
  const caused = []
  for (let row = 0; row < data.rows; row++) {
    if (data.on_gpu[row] == 1 && (causes[data.op[row]] == 1 || causes[data.owner[row]] == 1)) {
      caused.push(row)
    }
  }
  return caused
}

function rows_key(data: PanelData, rows: number[]): string {
  return `${data.name} ${rows.join(",")}`
}

const PLOTS_CSS = `
:host { padding: 6px 0 10px; border-top: 0; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 12px; margin: 2px 0 4px; color: var(--muted); }
.bars { display: grid; grid-template-columns: max-content minmax(0, 1fr) max-content; gap: 3px 10px; align-items: center; max-height: 320px; overflow-y: auto; margin-bottom: 8px; }
.bars .group { max-width: 240px; text-align: right; }
.bars .stack { display: flex; height: 18px; }
.bars .part { flex: none; min-width: 0; border: 0; border-radius: 0; padding: 0; cursor: pointer; margin-right: 1px; font-size: 11px; line-height: 16px; text-align: center; overflow: hidden; white-space: nowrap; }
.bars .part[aria-selected=true] { outline: 2px solid var(--fg); outline-offset: -2px; }
.points { display: block; width: 100%; height: 300px; margin-bottom: 6px; outline-offset: -2px; }
.points text { font: 11px var(--jp-ui-font-family, system-ui, sans-serif); fill: var(--muted); }
.points text.label { fill: var(--fg); paint-order: stroke; stroke: var(--bg); stroke-width: 3px; }
.points .grid { stroke: var(--line); stroke-width: 1; shape-rendering: crispEdges; }
.points .roof { fill: none; stroke: var(--fg); stroke-width: 1.5; }
.points circle { fill: var(--accent); fill-opacity: 0.45; stroke: var(--accent); stroke-width: 1; cursor: pointer; }
.points circle.chosen { fill: #d55e00; fill-opacity: 0.9; stroke: var(--fg); stroke-width: 2; }
.points circle.under { stroke: var(--fg); stroke-width: 2; }
`
