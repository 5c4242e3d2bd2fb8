import type * as p from "@bokehjs/core/properties"

import {ANALYSIS_CSS} from "./analysis_styles"
import {AnalysisTabs} from "./analysis_tabs"
import {copy_text} from "./clipboard"
import {button, element} from "./element"
import {format_count, format_ns, to_csv} from "./engine"
import type {PanelColumn, PanelData, PanelValue} from "./engine"
import {matcher} from "./matcher"
import {Panel, PanelView} from "./panel"
import {jump_to_event, rows_key, select_rows, selected_rows} from "./panel_select"
import {panel_text, row_name, row_text} from "./panel_text"
import {Scatter} from "./scatter"
import {stacked_bars} from "./stacked_bars"
import {Tooltip} from "./tooltip"
import type {Fact} from "./tooltip"

const PYTHON_PANEL = "python_time"
const FIRST_ROWS = 10
const DOUBLE_CLICK_MS = 400
/** Pixels of a letter, of a cell's padding, and of columns. */
const LETTER = 7.5
const PADDING = 18
const NUMBER_WIDTH: Partial<Record<PanelColumn["unit"], number>> = {"flop": 104, "flop/s": 114, "bytes/s": 96}
const ANY_NUMBER = 84
const LEAST_TEXT = 70
const MOST_TEXT = 200
const MOST_FIRST = 640
/** Where there is too little room, the first column keeps this, and other texts give way if that is enough; else the table scrolls. */
const LEAST_FIRST = 180

type Order = {key: string, descending: boolean}

/** Bars or points, and the table, of the shown analysis in the brushed range. */
export class AnalysisTableView extends PanelView {
  declare model: AnalysisTable

  protected readonly css = ANALYSIS_CSS
  private data: PanelData
  private values: PanelValue[][]
  /** Rows of the range, in no order. */
  private present: number[]
  private order: Order | null = null
  private show_all = false
  private filter = ""
  private focused = -1
  /** Which of the events of the row that is selected the view was moved to last. */
  private jumped: {key: string, number: number} = {key: "", number: -1}
  private clicked = {row: -1, time: -Infinity}
  private tooltip: Tooltip | null = null
  /** Pixels in which the table was laid out. */
  private room = 0
  private scatter: Scatter
  private plot: HTMLElement
  private tools: HTMLElement
  private status: HTMLElement
  private filter_input: HTMLInputElement
  private zoom_button: HTMLButtonElement
  private table: HTMLTableElement
  private more: HTMLButtonElement
  private observer: ResizeObserver

  override connect_signals(): void {
    super.connect_signals()
    const {store, model} = this
    this.connect(store.properties.window.change, () => this.recompute())
    this.connect(store.selection_changed, () => this.fill())
    this.connect(store.was_reset, () => this.clear_filter())
    this.connect(model.tabs.properties.active.change, () => this.open())
  }

  override remove(): void {
    this.observer?.disconnect()
    this.tooltip?.remove()
    super.remove()
  }

  override after_render(): void {
    super.after_render()
    this.tooltip ??= new Tooltip(this.root.el, this.root.shadow_el)
  }

  protected build_content(): Node[] {
    this.scatter = new Scatter({
      choose: (row, event) => this.choose([row], event),
      hover: (row, event) => this.hover_row(row, event),
      leave: () => this.tooltip?.hide(),
    })
    this.plot = element("div", {})
    this.observer = new ResizeObserver(() => this.resize())
    this.observer.observe(this.plot)
    this.status = element("span", {class: "muted", role: "status"})
    this.filter_input = element("input", {type: "search", placeholder: "Filter rows", "aria-label": "Filter rows", size: 18})
    this.filter_input.addEventListener("input", () => {
      this.filter = this.filter_input.value
      this.fill()
    })
    this.zoom_button = button("Zoom to event", {title: "Zoom to the selected row's longest event; again: to the next longest (f)"}, () => this.jump())
    this.tools = element("div", {class: "row"}, this.status, element("div", {class: "row push"},
      this.filter_input, this.zoom_button, button("Copy CSV", {}, () => void this.copy())))
    this.table = element("table", {})
    this.table.addEventListener("keydown", (event) => this.key(event))
    this.more = button("", {class: "more"}, () => {
      this.show_all = !this.show_all
      this.fill()
    })
    const content = element("div", {role: "tabpanel"}, this.plot, this.tools, element("div", {class: "frame"}, this.table), this.more)
    this.open()
    return [content]
  }

  /** Shows another analysis. */
  private open(): void {
    const {shown} = this.model.tabs
    if (shown == null) {
      return
    }
    this.data = shown
    this.order = first_order(shown, this.store.functions_sort)
    this.show_all = false
    this.filter = ""
    this.filter_input.value = ""
    this.filter_input.hidden = shown.length <= FIRST_ROWS
    this.zoom_button.hidden = shown.events == null
    this.focused = -1
    this.table.setAttribute("aria-label", shown.title)
    this.table.parentElement?.parentElement?.setAttribute("aria-label", shown.title)
    this.recompute()
  }

  private clear_filter(): void {
    this.filter = ""
    this.filter_input.value = ""
    this.fill()
  }

  private recompute(): void {
    const {store, data} = this
    this.values = data.values(store.window == null ? null : store.range)
    const present = store.window == null ? null : data.present(store.range)
    this.present = Array.from({length: data.length}, (_, row) => row).filter((row) => present == null || present[row] == 1)
    this.fill()
  }

  /** The rows that pass the filter, in order. */
  private filtered(): number[] {
    const {data, values, order} = this
    const {test} = matcher(this.filter, false)
    const texts = values.filter((_, at) => data.columns[at].unit == "text")
    const wanted = this.present.filter((row) => this.filter == "" || texts.some((column) => test(String(column[row]))))
    return order == null ? wanted : sorted(wanted, values[data.at(order.key)], order.descending)
  }

  private fill(): void {
    const {data} = this
    const rows = this.filtered()
    const chosen = selected_rows(this.store, data)
    this.status.textContent = this.summary(rows)
    const had_focus = this.table.contains(this.shadow_el.activeElement)
    const first = this.show_all ? rows : rows.slice(0, FIRST_ROWS)
    // What was selected in another view is shown, wherever it stands.
    const shown = [...first, ...this.present.filter((row) => chosen.has(row) && !first.includes(row)).slice(0, FIRST_ROWS)]
    this.focused = shown.includes(this.focused) ? this.focused : shown.find((row) => chosen.has(row)) ?? shown[0] ?? -1
    this.room = this.plot.clientWidth
    const widths = this.fitted(this.widths(shown))
    const others = widths.slice(1).reduce((sum, width) => sum + width, 0)
    this.table.style.width = `min(100%, ${widths[0] + others}px)`
    this.table.style.minWidth = `${Math.min(widths[0], LEAST_FIRST) + others}px`
    this.table.replaceChildren(this.columns(widths), this.head(), this.body(shown, chosen))
    this.more.hidden = rows.length <= FIRST_ROWS
    this.more.textContent = this.show_all ? `Show the first ${FIRST_ROWS}` : `Show all ${rows.length} rows`
    this.zoom_button.disabled = this.chosen_here() < 0
    this.draw(chosen)
    if (had_focus) {
      this.table.querySelector<HTMLElement>(`tr[data-row="${this.focused}"]`)?.focus({preventScroll: true})
    }
  }

  private draw(chosen: Set<number>): void {
    const {data, values, present} = this
    if (data.points != null) {
      this.plot.replaceChildren(this.scatter.el)
      this.draw_points()
      return
    }
    this.plot.replaceChildren(...stacked_bars(data, values, present, chosen, {
      choose: (rows, event) => this.choose(rows, event),
      hover: (title, words, event) => this.tooltip?.show(title, [["Time", words]], event.clientX, event.clientY),
      leave: () => this.tooltip?.hide(),
    }))
  }

  private resize(): void {
    if (this.plot.clientWidth == this.room) {
      this.draw_points()
    } else {
      this.fill()
    }
  }

  private draw_points(): void {
    const {data, values, present, store} = this
    if (data?.points != null && this.plot.clientWidth > 0) {
      this.scatter.draw(data, values, present, selected_rows(store, data), this.plot.clientWidth)
    }
  }

  private summary(rows: number[]): string {
    const {window} = this.store
    const {columns, events} = this.data
    const count = format_count(rows.length, "row")
    if (window == null || events == null) {
      return `${count} · whole trace`
    }
    if (this.data.cut) {
      return `${count} · whole trace: it has too many events to tell what lies in the range`
    }
    const fixed = columns.some((column) => column.unit != "text" && !this.data.follows(column))
    return `${count} · selected range, ${format_ns(window[1] - window[0])}${fixed ? " · underlined columns are of the whole trace" : ""}`
  }

  /** Whether a column's numbers are of the whole run though a range is selected. */
  private is_fixed(column: PanelColumn): boolean {
    return this.store.window != null && this.data.events != null && column.unit != "text" && !this.data.follows(column)
  }

  /** Pixels that each column needs for what is shown in it; the first one gives way where there is less. */
  private widths(shown: number[]): number[] {
    return this.data.columns.map(({label, unit}, at) => {
      if (unit != "text") {
        // A heading may take two lines.
        const words = label.split(" ").map((word) => word.length)
        return Math.max(NUMBER_WIDTH[unit] ?? ANY_NUMBER, Math.max(...words, label.length / 2) * LETTER + PADDING + 8)
      }
      const letters = Math.max(label.length + 2, ...shown.map((row) => String(this.values[at][row]).length))
      return Math.max(LEAST_TEXT, Math.min(letters * LETTER + PADDING, at == 0 ? MOST_FIRST : MOST_TEXT))
    })
  }

  /** These widths, those of texts smaller where all fit then. */
  private fitted(widths: number[]): number[] {
    const gives = widths.map((width, at) => at > 0 && this.data.columns[at].unit == "text" ? width - LEAST_TEXT : 0)
    const [needed, spare] = [widths, gives].map((all) => all.slice(1).reduce((sum, each) => sum + each, 0))
    const missing = Math.min(widths[0], LEAST_FIRST) + needed - this.room
    const part = missing > 0 && missing <= spare ? missing / spare : 0
    return widths.map((width, at) => width - part * gives[at])
  }

  private columns(widths: number[]): HTMLElement {
    return element("colgroup", {}, ...widths.map((width, at) => element("col", {style: at == 0 ? "" : `width:${width}px`})))
  }

  private head(): HTMLElement {
    return element("thead", {}, element("tr", {}, ...this.data.columns.map((column) => this.heading(column))))
  }

  private heading(column: PanelColumn): HTMLElement {
    const {key, label, unit} = column
    const active = this.order?.key == key
    const direction = this.order?.descending ?? false ? "descending" : "ascending"
    const sign = active ? direction == "descending" ? "\u00a0▾" : "\u00a0▴" : ""
    const fixed = this.is_fixed(column)
    const head = button(label + sign, {"data-sort": key, title: fixed ? `${label}: of the whole trace` : `Sort by ${label}`}, () => {
      this.order = {key, descending: active ? direction == "ascending" : unit != "text"}
      this.fill()
      this.table.querySelector<HTMLElement>(`[data-sort="${key}"]`)?.focus()
    })
    const css_class = [unit == "text" ? "" : "number", fixed ? "whole" : ""].join(" ").trim()
    return element("th", {scope: "col", class: css_class == "" ? null : css_class, "aria-sort": active ? direction : "none"}, head)
  }

  private body(rows: number[], chosen: Set<number>): HTMLElement {
    if (rows.length == 0) {
      const words = this.filter == "" ? "Nothing of it lies in this range." : "No row has this in its name."
      return element("tbody", {}, element("tr", {class: "fixed"}, element("td", {colspan: this.data.columns.length, class: "muted"}, words)))
    }
    return element("tbody", {}, ...rows.map((row) => this.line(row, chosen.has(row))))
  }

  private line(row: number, selected: boolean): HTMLTableRowElement {
    const {data} = this
    const line = element("tr", {
      "tabindex": row == this.focused ? 0 : -1, "aria-selected": String(selected), "data-row": row, "class": data.events == null ? "fixed" : null,
    }, ...data.columns.map((column, at) => this.cell(column, this.values[at][row])))
    line.addEventListener("click", (event) => this.choose([row], event))
    return line
  }

  private cell(column: PanelColumn, value: PanelValue): HTMLElement {
    const {key, unit} = column
    const words = panel_text(value, unit)
    if (unit == "text") {
      return element("td", {title: words == "" ? null : words}, words)
    }
    const fill = unit == "share" && typeof value == "number" && value > 0
      ? [element("span", {class: "fill", style: `width:calc((100% - 16px) * ${Math.min(1, value)})`})] : []
    const css_class = this.is_fixed(column) ? "number whole" : "number"
    return element("td", {"class": css_class, "data-column": key, "data-value": value}, words, ...fill)
  }

  /** A click selects or releases; a double click selects and zooms to an event. */
  private choose(rows: number[], event: MouseEvent | KeyboardEvent): void {
    const [row] = rows
    this.focused = row
    if (event instanceof MouseEvent && this.is_second(row, event.timeStamp)) {
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
    const text = rows.length == 1 ? row_text(this.data, this.values, rows[0]) : `${this.data.title}: ${format_count(rows.length, "row")}`
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
    if (row >= 0) {
      const key = rows_key(this.data, [row])
      const number = this.jumped.key == key ? this.jumped.number + 1 : 0
      this.jumped = {key, number}
      const count = jump_to_event(this.store, this.data, row, number)
      this.status.textContent = `${row_name(this.data, this.values, row)}: event ${number % count + 1} of ${count}, the longest first`
    }
  }

  private hover_row(row: number, event: MouseEvent): void {
    const facts = this.data.columns.map(({label, unit}, at): Fact => [label, panel_text(this.values[at][row], unit)])
    const known = facts.slice(1).filter(([, words]) => words != "" && words != "–")
    this.tooltip?.show(row_name(this.data, this.values, row), known, event.clientX, event.clientY)
  }

  private key(event: KeyboardEvent): void {
    const line = event.target instanceof HTMLTableRowElement ? event.target : null
    if (line != null && line.dataset.row != null && this.row_key(event, line)) {
      event.preventDefault()
      event.stopPropagation()
    }
  }

  private row_key(event: KeyboardEvent, line: HTMLTableRowElement): boolean {
    const lines = [...line.parentElement!.children] as HTMLTableRowElement[]
    const to = {ArrowDown: lines.indexOf(line) + 1, ArrowUp: lines.indexOf(line) - 1, Home: 0, End: lines.length - 1}[event.key]
    if (to != null) {
      const next = lines[Math.max(0, Math.min(to, lines.length - 1))]
      line.tabIndex = -1
      next.tabIndex = 0
      next.focus()
      this.focused = Number(next.dataset.row)
      return true
    }
    if (event.key == "Enter" || event.key == " ") {
      this.choose([Number(line.dataset.row)], event)
      return true
    }
    if (event.key == "f") {
      this.select([Number(line.dataset.row)])
      this.jump()
      return true
    }
    return false
  }

  private async copy(): Promise<void> {
    const rows = this.filtered()
    const lines = rows.map((row) => this.values.map((column) => column[row] ?? ""))
    const copied = await copy_text(to_csv(this.data.columns.map(({key}) => key), lines), this.shadow_el)
    this.status.textContent = copied ? `Copied ${format_count(rows.length, "row")} (times in ns, sizes in bytes)` : "The browser did not allow copying"
  }
}

/** The order in which a table opens; null: as its rows stand. */
function first_order(data: PanelData, of_functions: string): Order | null {
  const key = data.name == PYTHON_PANEL && data.at(of_functions) >= 0 ? of_functions : data.sort
  const at = data.at(key)
  return at < 0 ? null : {key, descending: data.columns[at].unit != "text"}
}

/** Rows by their values, those without one last; equal ones as they stand. */
function sorted(rows: number[], values: PanelValue[], descending: boolean): number[] {
  const sign = descending ? -1 : 1
  return [...rows].sort((a, b) => {
    const [left, right] = [values[a], values[b]]
    if (left == null || right == null) {
      return Number(left == null) - Number(right == null) || a - b
    }
    return sign * (typeof left == "string" ? left.localeCompare(String(right)) : left - Number(right)) || a - b
  })
}

export class AnalysisTable extends Panel {
  declare properties: AnalysisTable.Props
  declare __view_type__: AnalysisTableView

  static override __module__ = "gpuprof_widgets.views.models"

  static {
    this.prototype.default_view = AnalysisTableView
    this.define<AnalysisTable.Props>(({Ref}) => ({
      tabs: [Ref(AnalysisTabs)],
    }))
  }
}

export namespace AnalysisTable {
  export type Attrs = p.AttrsOf<Props>
  export type Props = Panel.Props & {tabs: p.Property<AnalysisTabs>}
}

export interface AnalysisTable extends AnalysisTable.Attrs {}
