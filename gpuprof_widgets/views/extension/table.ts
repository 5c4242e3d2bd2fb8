import {copy_text} from "./clipboard"
import {ColumnWidths} from "./column_widths"
import {button, element} from "./element"
import {format_count, format_ns, is_empty, sorted, to_csv, type Column, type Order, type Window} from "./engine"
import {PanelView, selected_text} from "./panel"
import {RowFilter} from "./row_filter"
import {RowFocus} from "./row_focus"
import {cell_element, colour_bars, column_classes, row_style, TABLE_CSS} from "./table_look"

/** Number of rows that a long table lists; the filter reaches the others. */
const MOST_ROWS = 1_000

/** A table with headings that sort, a filter, keys that walk the rows, a link to the selection, and a copy as CSV. */
export abstract class TableView<Row> extends PanelView {
  protected readonly css: string = TABLE_CSS
  /** Rows of the range and of the whole trace, in no order. */
  rows: Row[] = []
  /** What changes with the rows that are being listed. */
  private due = new Set<"table" | "columns">()
  /** Counts the lists that were asked for: an answer that comes after a later one was asked for is of no use. */
  private lists = 0
  protected columns: Column<Row>[] = []
  protected order: Order | null = null
  /** Rows that are listed until all are asked for. */
  protected readonly first_rows: number = 20
  protected table: HTMLTableElement
  protected frame: HTMLElement
  protected status: HTMLElement
  private whole: HTMLElement
  private below: HTMLElement
  private more: HTMLButtonElement
  private readonly filter = new RowFilter(() => this.fill())
  private widths: ColumnWidths<Row>
  private row_focus: RowFocus
  private show_all = false
  /** The rows that pass the filter, in order, and those of them that are listed. */
  private passing: Row[] = []
  private listed: Row[] = []
  /** Whether the first row that holds the selection is to come onto the screen once the rows are listed. */
  private calls_up = false
  /** The text that was selected when the mouse was pressed: a drag that selects another one is no click. */
  private pressed_text = ""
  /** The largest change in each column of changes. */
  private largest = new Map<string, number>()

  /** The name of the table. */
  protected abstract get title(): string

  protected abstract list_columns(): Column<Row>[]

  /** The rows of a range; null: of the whole trace. */
  protected abstract list_rows(range: Window | null): Row[] | Promise<Row[]>

  /** Returns a key that identifies a selectable row in any range. */
  protected abstract key_of(row: Row): string

  /** Keys of the rows that hold the selection, made here or in another view. */
  protected abstract chosen_keys(): Set<string>

  /** Selects a row, or releases it. */
  protected abstract choose(row: Row, event: MouseEvent | KeyboardEvent): void

  /** The text next to the title, about the rows that pass the filter. */
  protected abstract summary(count: number): string

  /** The order in which the table opens; null: as its rows stand. */
  protected first_order(): Order | null {
    return null
  }

  protected nothing(): string {
    return this.is_filtered ? "No row matches the filter." : "Nothing in this range."
  }

  protected is_listed(_row: Row): boolean {
    return true
  }

  /** Whether a double click on a row zooms; elsewhere it selects a word. */
  protected get zooms_on_double_click(): boolean {
    return false
  }

  /** Whether a click on a row selects anything. */
  protected is_selectable(_row: Row): boolean {
    return true
  }

  /** Colour of a row's square and bars. */
  protected colour_of(_row: Row): string | null {
    return null
  }

  /** Whether the numbers of a column are of the whole trace though a range is selected. */
  protected ignores_range(_column: Column<Row>): boolean {
    return false
  }

  /** Whether rows selected in another view are always listed, though the page below the table moves. */
  protected get lists_rows_selected_elsewhere(): boolean {
    return this.store.selection?.source != "panel"
  }

  protected heading_of_table(): Node[] {
    return [element("h3", {}, this.title)]
  }

  /** The text below the table. */
  protected totals(): string {
    return ""
  }

  /** The elements between the search box and the button that copies. */
  protected tools(): Node[] {
    return []
  }

  /** Whether a key that was pressed on a row did something. */
  protected on_row_key(_row: Row, _event: KeyboardEvent): boolean {
    return false
  }

  /** Called when the rows that hold the selection were marked. */
  protected on_marked(): void {}

  /** Called when other columns are shown, or in another order. */
  protected on_columns_changed(): void {}

  override connect_signals(): void {
    super.connect_signals()
    const {store} = this
    this.connect(store.properties.window.change, () => this.list())
    this.connect(store.selection_changed, () => this.follow_selection())
    this.connect(store.was_reset, () => this.clear_filter())
    this.connect(store.theme.changed, () => this.fill())
  }

  /** The rows are there before the table is: it is drawn once. */
  override async lazy_initialize(): Promise<void> {
    await super.lazy_initialize()
    await this.list_rows(null)
  }

  override remove(): void {
    this.widths?.remove()
    super.remove()
  }

  protected build_content(): Node[] {
    this.status = element("span", {class: "muted", role: "status"})
    this.table = element("table", {})
    this.row_focus = new RowFocus(this.table, this.shadow_el)
    this.table.addEventListener("keydown", (event) => this.key(event))
    this.frame = element("div", {class: "frame"}, this.table)
    this.below = element("p", {class: "number below"})
    this.more = button("", {class: "more"}, () => {
      this.show_all = !this.show_all
      this.fill()
    })
    const tools = element("div", {class: "row push"}, ...this.filter.els, ...this.tools(), button("Copy CSV", {}, () => void this.copy()))
    const bar = element("div", {class: "row"}, ...this.heading_of_table(), this.status, tools)
    this.widths?.remove()
    this.widths = new ColumnWidths(this.table, this.frame)
    this.whole = element("div", {role: "group"}, bar, this.frame, this.below, this.more)
    this.show_table()
    return [this.whole]
  }

  /** Shows another table: with columns of its own, from its first row. */
  protected show_table(): void {
    this.show_all = false
    this.row_focus.set(null)
    this.filter.clear()
    this.due.add("table")
    this.change_columns()
  }

  /** Begins with another table, whose rows are there. */
  protected open_table(): void {
    this.order = this.first_order()
    for (const el of [this.whole, this.table]) {
      el.setAttribute("aria-label", this.title)
    }
  }

  /** Lists columns and rows anew. */
  protected change_columns(): void {
    this.due.add("columns")
    this.list()
  }

  /** Brings the first row that holds the selection onto the screen. */
  protected call_up(): void {
    this.calls_up = true
    this.list()
  }

  /** Lists the rows of the range anew, and what else is due. They may be there at once, or later. */
  private list(): void {
    const number = ++this.lists
    const range = this.store.window == null ? null : this.store.range
    const later = (then: () => void): void => number == this.lists ? then() : undefined
    void Promise.all([this.list_rows(null), range == null ? null : this.list_rows(range)]).then(
      ([whole, rows]) => later(() => this.show_rows(rows ?? whole, whole)),
      (error) => later(() => { this.status.textContent = uncounted(error) }))
  }

  private show_rows(rows: Row[], whole: Row[]): void {
    const {due} = this
    this.due = new Set()
    this.rows = rows
    if (due.has("table")) {
      this.open_table()
    }
    if (due.has("columns")) {
      this.columns = this.list_columns()
      const listed = whole.filter((row) => this.is_listed(row))
      const empty = this.shown_columns.slice(1).filter((column) => is_empty(column, listed))
      this.columns = this.columns.map((column) => empty.includes(column) ? {...column, is_hidden: true} : column)
      if (!this.shown_columns.some(({key}) => key == this.order?.key)) {
        this.order = this.first_order()
      }
      this.widths.change(this.shown_columns, listed)
    }
    this.add_up()
    this.fill()
    if (due.has("columns")) {
      this.on_columns_changed()
    }
    if (this.calls_up) {
      this.calls_up = false
      this.row_focus.lines.find(({ariaSelected}) => ariaSelected == "true")?.scrollIntoView({block: "center"})
    }
  }

  /** Computes sums and extremes over all rows of the range. */
  protected add_up(): void {
    const size = (row: Row, {value}: Column<Row>): number => Math.abs(Number(value(row)))
    this.largest = new Map(this.columns.filter(({unit}) => unit == "change")
      .map((column) => [column.key, this.rows.reduce((most, row) => Math.max(most, size(row, column)), 0)]))
  }

  private clear_filter(): void {
    this.filter.clear()
    this.fill()
  }

  protected get shown_columns(): Column<Row>[] {
    return this.columns.filter(({is_hidden}) => !is_hidden)
  }

  /** The rows that pass the filter, in order. */
  private filtered(): Row[] {
    const texts = this.shown_columns.filter(({unit}) => unit == "text")
    const passes = (row: Row): boolean => !this.is_filtered || texts.some(({value}) => this.filter.test(String(value(row) ?? "")))
    const rows = this.rows.filter((row) => this.is_listed(row) && passes(row))
    const column = this.columns.find(({key}) => key == this.order?.key)
    return column == null ? rows : sorted(rows, column, this.order!.descending)
  }

  protected get is_filtered(): boolean {
    return this.filter.is_on
  }

  protected fill(): void {
    if (this.columns.length == 0) {
      return // nothing has been listed yet
    }
    const rows = this.filtered()
    const chosen = this.chosen_keys()
    const {focused} = this.row_focus
    this.passing = rows
    this.listed = this.rows_to_list(chosen)
    colour_bars(this.table, this.store.theme.palette)
    this.table.replaceChildren(
      element("colgroup", {}, ...this.shown_columns.map(() => element("col"))), this.head(), ...this.bodies(this.listed))
    this.widths.lay_out()
    this.mark(chosen)
    this.status.textContent = this.filter.error ?? this.summary(rows.length)
    this.below.textContent = this.totals()
    this.more.hidden = rows.length <= this.first_rows
    this.more.textContent = this.show_all ? `Show the first ${this.first_rows}`
      : rows.length > MOST_ROWS ? `Show the first ${MOST_ROWS.toLocaleString("en")} of ${format_count(rows.length, "row")}`
      : `Show all ${format_count(rows.length, "row")}`
    this.row_focus.restore(focused)
  }

  private follow_selection(): void {
    const chosen = this.chosen_keys()
    const rows = this.rows_to_list(chosen)
    if (rows.length == this.listed.length && rows.every((row, at) => row === this.listed[at])) {
      this.mark(chosen)
    } else {
      this.fill()
    }
  }

  /** Returns the first rows that pass the filter, and all rows that were selected in another view. */
  private rows_to_list(chosen: Set<string>): Row[] {
    const first = this.passing.slice(0, this.show_all ? MOST_ROWS : this.first_rows)
    if (!this.lists_rows_selected_elsewhere || chosen.size == 0) {
      return first
    }
    const listed = new Set(first)
    const is_chosen = (row: Row): boolean => this.is_selectable(row) && chosen.has(this.key_of(row))
    const others = this.rows.filter((row) => is_chosen(row) && !listed.has(row)).slice(0, this.first_rows)
    const all = new Set([...first, ...others])
    return others.length == 0 || this.order != null ? [...all] : this.rows.filter((row) => all.has(row))
  }

  private mark(chosen: Set<string>): void {
    this.row_focus.mark(chosen)
    this.on_marked()
  }

  private head(): HTMLElement {
    return element("thead", {}, element("tr", {}, ...this.shown_columns.map((column) => {
      const ignores_range = this.ignores_range(column)
      return element("th", {scope: "col", class: column_classes(column, ignores_range), "aria-sort": this.sorting(column)}, this.heading(column, ignores_range))
    })))
  }

  protected sorting({key}: Column<Row>): string | null {
    return this.order?.key != key ? "none" : this.order.descending ? "descending" : "ascending"
  }

  protected heading({key, label, unit, title}: Column<Row>, ignores_range: boolean): HTMLElement {
    const active = this.order?.key == key
    const descending = active && this.order!.descending
    const words = title ?? `Sort by ${label}`
    return button(label + (active ? descending ? "\u00a0▾" : "\u00a0▴" : ""), {"data-head": key, title: ignores_range ? `${words}; of the whole trace` : words}, () => {
      this.sort_by({key, descending: active ? !descending : unit != "text"})
    })
  }

  protected sort_by(order: Order): void {
    this.order = order
    this.fill()
  }

  protected bodies(rows: Row[]): HTMLElement[] {
    if (rows.length == 0) {
      return [element("tbody", {}, element("tr", {}, element("td", {colspan: this.shown_columns.length, class: "muted nothing"}, this.nothing())))]
    }
    return [element("tbody", {}, ...rows.map((row) => this.row_element(row)))]
  }

  protected row_element(row: Row): HTMLTableRowElement {
    const cells = this.shown_columns.map((column) => this.cell(column, row))
    const colour = this.colour_of(row)
    const line = element("tr", {style: colour == null ? null : row_style(colour, this.store.theme.palette)}, ...cells)
    if (this.is_selectable(row)) {
      line.dataset.key = this.key_of(row)
      line.addEventListener("mousedown", (event) => {
        this.pressed_text = selected_text(this.shadow_el)
        if (event.detail > 1 && this.zooms_on_double_click) {
          event.preventDefault()
        }
      })
      line.addEventListener("click", (event) => {
        const text = selected_text(this.shadow_el)
        if (text == "" || text == this.pressed_text) {
          this.row_focus.set(line.dataset.key!)
          this.choose(row, event)
        }
      })
    }
    return line
  }

  protected cell(column: Column<Row>, row: Row): HTMLElement {
    return cell_element(column, row, this.ignores_range(column), this.largest.get(column.key) ?? 0)
  }

  private key(event: KeyboardEvent): void {
    const line = event.target instanceof HTMLTableRowElement ? event.target : null
    const row = this.listed.find((row) => this.is_selectable(row) && this.key_of(row) == line?.dataset.key)
    if (line != null && row != null && !event.ctrlKey && !event.metaKey && !event.altKey && this.row_key(line, row, event)) {
      event.preventDefault()
      event.stopPropagation()
    }
  }

  private row_key(line: HTMLTableRowElement, row: Row, event: KeyboardEvent): boolean {
    if (this.row_focus.move(line, event.key)) {
      return true
    }
    if (event.key == "Enter" || event.key == " ") {
      this.choose(row, event)
      return true
    }
    return this.on_row_key(row, event)
  }

  private async copy(): Promise<void> {
    const rows = this.filtered().filter((row) => this.is_copied(row))
    const text = to_csv(this.columns.map(({key}) => key), rows.map((row) => this.columns.map(({value}) => value(row) ?? "")))
    const copied = await copy_text(text, this.shadow_el)
    this.status.textContent = copied ? `Copied ${format_count(rows.length, "row")} (times in ns, sizes in bytes)` : "The browser did not allow copying"
  }

  protected is_copied(_row: Row): boolean {
    return true
  }

  /** The part of the trace that the numbers describe. */
  protected get where(): string {
    const {window} = this.store
    return window == null ? "whole trace" : `selected range, ${format_ns(window[1] - window[0])}`
  }
}

/** Returns what stands for numbers that could not be had; those of the range before are still there. */
function uncounted(error: unknown): string {
  return `These numbers are not of the selected range, which could not be counted: ${String(error)}`
}
