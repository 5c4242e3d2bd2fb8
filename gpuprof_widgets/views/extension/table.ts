import {GREW, SHRANK} from "./categories"
import {css, mix, outline_of, parse_colour, with_contrast} from "./colour"
import {button, element, regex_button} from "./element"
import {
  CHANGE_BAR, column_text, fitted, format_count, format_ns, format_share, is_empty, matcher, sorted, to_csv, WIDEST_SHARE, widths_of,
  type Cell, type Column, type Matcher, type Measure, type Order, type Unit, type Width, type Window,
} from "./engine"
import {FRAME_CSS, PanelView, selected_text} from "./panel"

/** Number of rows that a long table lists; the filter reaches the others. */
const MOST_ROWS = 1_000
/** Share of the background in the fill of a bar behind text, at least; and the contrast that the text keeps. */
const PALE = 0.4
const LEGIBLE = 4.6

/** A table with headings that sort, a filter, keys that walk the rows, a link to the selection, and a copy as CSV. */
export abstract class TableView<Row> extends PanelView {
  protected readonly css: string = TABLE_CSS
  /** Rows of the range and of the whole trace, in no order. */
  rows: Row[] = []
  private whole_rows: Row[] = []
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
  private section: HTMLElement
  private below: HTMLElement
  private more: HTMLButtonElement
  private search: HTMLInputElement
  private as_regex = false
  private filter: Matcher = matcher("", false)
  private show_all = false
  /** The rows that pass the filter, in order, and those of them that are listed. */
  private passing: Row[] = []
  private listed: Row[] = []
  /** Key of the row that the Tab key reaches. */
  private tab_stop: string | null = null
  /** Whether the first row that holds the selection is to come onto the screen once the rows are listed. */
  private calls_up = false
  /** The widths that the columns need; null until they can be measured. */
  private widths: Width[] | null = null
  /** The text that was selected when the mouse was pressed: a drag that selects another one is no click. */
  private pressed_text = ""
  /** The largest change in each column of changes. */
  private largest = new Map<string, number>()
  private observer: ResizeObserver | null = null
  /** Pixels of the frame's width: to ask for it after each change would have the browser lay out the page each time. */
  private room = 0

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
    this.observer?.disconnect()
    super.remove()
  }

  protected build_content(): Node[] {
    this.status = element("span", {class: "muted", role: "status"})
    this.table = element("table", {})
    this.table.addEventListener("keydown", (event) => this.key(event))
    this.frame = element("div", {class: "frame"}, this.table)
    this.below = element("p", {class: "number below"})
    this.more = button("", {class: "more"}, () => {
      this.show_all = !this.show_all
      this.fill()
    })
    const tools = element("div", {class: "row push"}, ...this.search_box(), ...this.tools(), button("Copy CSV", {}, () => void this.copy()))
    const bar = element("div", {class: "row"}, ...this.heading_of_table(), this.status, tools)
    this.observer?.disconnect()
    this.observer = new ResizeObserver(() => {
      this.room = this.frame.clientWidth
      this.lay_out()
    })
    this.observer.observe(this.frame)
    this.section = element("section", {}, bar, this.frame, this.below, this.more)
    this.show_table()
    return [this.section]
  }

  private search_box(): Node[] {
    this.search = element("input", {type: "search", placeholder: "Filter rows", "aria-label": "Filter rows", size: 18})
    this.search.addEventListener("input", () => this.fill())
    const regex = regex_button("filter", (as_regex) => {
      this.as_regex = as_regex
      this.fill()
    })
    return [this.search, regex]
  }

  /** Shows another table: with columns of its own, from its first row. */
  protected show_table(): void {
    this.show_all = false
    this.tab_stop = null
    this.search.value = ""
    this.due.add("table")
    this.change_columns()
  }

  /** Begins with another table, whose rows are there. */
  protected open_table(): void {
    this.order = this.first_order()
    for (const el of [this.section, this.table]) {
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
    this.whole_rows = whole
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
      this.widths = null
    }
    this.add_up()
    this.fill()
    if (due.has("columns")) {
      this.on_columns_changed()
    }
    if (this.calls_up) {
      this.calls_up = false
      this.selectable_lines.find(({ariaSelected}) => ariaSelected == "true")?.scrollIntoView({block: "center"})
    }
  }

  /** Computes sums and extremes over all rows of the range. */
  protected add_up(): void {
    const size = (row: Row, {value}: Column<Row>): number => Math.abs(Number(value(row)))
    this.largest = new Map(this.columns.filter(({unit}) => unit == "change")
      .map((column) => [column.key, this.rows.reduce((most, row) => Math.max(most, size(row, column)), 0)]))
  }

  private clear_filter(): void {
    this.search.value = ""
    this.fill()
  }

  protected get shown_columns(): Column<Row>[] {
    return this.columns.filter(({is_hidden}) => !is_hidden)
  }

  /** The rows that pass the filter, in order; a pattern that is none lets all pass. */
  private filtered(): Row[] {
    this.filter = matcher(this.search.value, this.as_regex)
    const texts = this.shown_columns.filter(({unit}) => unit == "text")
    const passes = (row: Row): boolean => !this.is_filtered || texts.some(({value}) => this.filter.test(String(value(row) ?? "")))
    const rows = this.rows.filter((row) => this.is_listed(row) && passes(row))
    const column = this.columns.find(({key}) => key == this.order?.key)
    return column == null ? rows : sorted(rows, column, this.order!.descending)
  }

  protected get is_filtered(): boolean {
    return this.search.value != "" && this.filter.error == null
  }

  protected fill(): void {
    if (this.columns.length == 0) {
      return // nothing has been listed yet
    }
    const rows = this.filtered()
    const chosen = this.chosen_keys()
    const focused = this.focused
    this.passing = rows
    this.listed = this.rows_to_list(chosen)
    this.recolour_bars()
    this.table.replaceChildren(
      element("colgroup", {}, ...this.shown_columns.map(() => element("col"))), this.head(), ...this.bodies(this.listed))
    this.lay_out()
    this.mark(chosen)
    this.status.textContent = this.filter.error ?? this.summary(rows.length)
    this.below.textContent = this.totals()
    this.more.hidden = rows.length <= this.first_rows
    this.more.textContent = this.show_all ? `Show the first ${this.first_rows}`
      : rows.length > MOST_ROWS ? `Show the first ${MOST_ROWS.toLocaleString("en")} of ${format_count(rows.length, "row")}`
      : `Show all ${format_count(rows.length, "row")}`
    this.restore_focus(focused)
  }

  private get focused(): HTMLElement | null {
    const {activeElement} = this.shadow_el
    return activeElement instanceof HTMLElement && this.table.contains(activeElement) ? activeElement : null
  }

  /** The focus stays on a row or heading, though it is drawn anew. */
  private restore_focus(focused: HTMLElement | null): void {
    const {head} = focused?.dataset ?? {}
    if (head != null) {
      this.table.querySelector<HTMLElement>(`[data-head="${head}"]`)?.focus({preventScroll: true})
    } else if (focused != null) {
      this.selectable_lines.find(({dataset}) => dataset.key == this.tab_stop)?.focus({preventScroll: true})
    }
  }

  private recolour_bars(): void {
    const {accent, background} = this.store.theme.palette
    this.table.style.setProperty("--soft", this.soft(css(accent)))
    for (const [name, colour] of [["--grew", GREW], ["--shrank", SHRANK]] as const) {
      this.table.style.setProperty(name, css(outline_of(colour, background) ?? colour))
    }
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

  /** Marks the rows that hold the selection. Tab reaches the first of them, unless another row has the focus. */
  private mark(chosen: Set<string>): void {
    const lines = this.selectable_lines
    const is_there = lines.some(({dataset}) => dataset.key == this.tab_stop)
    if (!is_there || !this.table.contains(this.shadow_el.activeElement)) {
      const line = lines.find(({dataset}) => chosen.has(dataset.key!)) ?? (is_there ? null : lines[0])
      this.tab_stop = line?.dataset.key ?? (is_there ? this.tab_stop : null)
    }
    for (const line of lines) {
      line.setAttribute("aria-selected", String(chosen.has(line.dataset.key!)))
      line.tabIndex = line.dataset.key == this.tab_stop ? 0 : -1
    }
    this.on_marked()
  }

  private get selectable_lines(): HTMLTableRowElement[] {
    return [...this.table.querySelectorAll<HTMLTableRowElement>("tr[data-key]")]
  }

  private lay_out(): void {
    const {room} = this
    if (room > 0) {
      this.widths ??= this.measure_columns()
      const widths = fitted(this.widths, room)
      this.table.style.width = `${widths.reduce((sum, width) => sum + width, 0)}px`
      this.table.querySelectorAll("col").forEach((col, at) => { col.style.width = `${widths[at]}px` })
    }
  }

  private measure_columns(): Width[] {
    const measure = measure_in(this.table)
    this.table.style.setProperty("--share", `${measure(WIDEST_SHARE, "text")}px`)
    return widths_of(this.shown_columns, this.whole_rows.filter((row) => this.is_listed(row)), measure)
  }

  private head(): HTMLElement {
    return element("thead", {}, element("tr", {}, ...this.shown_columns.map((column) => {
      const ignores_range = this.ignores_range(column)
      return element("th", {scope: "col", class: classes(column, ignores_range), "aria-sort": this.sorting(column)}, this.heading(column, ignores_range))
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
    const line = element("tr", {style: colour == null ? null : `--row:${colour};--soft:${this.soft(colour)}`}, ...cells)
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
          this.tab_stop = line.dataset.key!
          this.choose(row, event)
        }
      })
    }
    return line
  }

  protected cell(column: Column<Row>, row: Row): HTMLElement {
    const {key, unit} = column
    const value = column.value(row)
    const words = column_text(column, row)
    const note = column.note?.(row) ?? null
    if (unit == "text") {
      const swatch = column.has_swatch ? [element("span", {class: "swatch"})] : []
      return element("td", {class: classes(column, false), title: note ?? (words == "" ? null : words)}, ...swatch, words)
    }
    const share = value == null || value == 0 ? null : column.share?.(row) ?? null
    const share_beside = share == null ? [] : [" ", element("span", {class: "share muted"}, format_share(share).replace("less than ", "<"))]
    const style = bar_style(unit, value, share, this.largest.get(key) ?? 0)
    const names = [classes(column, this.ignores_range(column)), unit == "change" ? "change" : style == null ? null : "bar"]
    return element("td", {class: names.filter((name) => name != null).join(" "), title: note, "data-column": key, "data-value": value, style},
      words, ...share_beside)
  }

  /** Returns the fill of a bar behind a text: as strong as the text allows. */
  private soft(colour: string): string {
    const {background, muted} = this.store.theme.palette
    return css(with_contrast(mix(parse_colour(colour).rgb, background, PALE), background, muted, LEGIBLE))
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
    const lines = this.selectable_lines
    const at = lines.indexOf(line)
    const to = {ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: lines.length - 1}[event.key]
    if (to != null) {
      const next = lines[Math.max(0, Math.min(to, lines.length - 1))]
      line.tabIndex = -1
      next.tabIndex = 0
      next.focus()
      this.tab_stop = next.dataset.key!
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
  return `These numbers are not of the present range, which could not be counted: ${String(error)}`
}

function classes({unit, is_code}: {unit: Unit, is_code?: boolean}, ignores_range: boolean): string | null {
  const names = [unit == "text" ? "" : "number", is_code ? "code" : "", ignores_range ? "whole" : ""].filter((name) => name != "")
  return names.length == 0 ? null : names.join(" ")
}

/** Returns the bar behind a number, as long as its share; the bar beside a change begins in the middle. */
function bar_style(unit: Unit, value: Cell, share: number | null, most: number): string | null {
  if (typeof value != "number") {
    return null
  }
  if (unit == "change") {
    const part = most == 0 ? 0 : value / most * 50
    const [from, to] = [Math.min(50, 50 + part), Math.max(50, 50 + part)]
    return part == 0 ? null : `--from:${from}%;--to:${to}%;--change:var(${part < 0 ? "--shrank" : "--grew"})`
  }
  const part = unit == "share" ? value : share ?? 0
  return part > 0 ? `--to:max(1px,${100 * Math.min(1, part)}%)` : null
}

/** Returns a function that measures texts in the fonts of a table on the page. */
function measure_in(table: HTMLElement): Measure {
  const style = getComputedStyle(table)
  const ctx = document.createElement("canvas").getContext("2d")!
  const page = `${style.fontSize} ${style.fontFamily}`
  const fonts = {text: page, heading: `600 ${page}`, code: `12px ${style.getPropertyValue("--mono")}`}
  return (text, font) => {
    ctx.font = fonts[font]
    return ctx.measureText(text).width
  }
}

/** Copies text, also where the page may not use the clipboard API (as in `file://` pages and iframes). */
async function copy_text(text: string, host: ShadowRoot): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text)
    return true
  } catch {
    return copy_by_selection(text, host)
  }
}

function copy_by_selection(text: string, host: ShadowRoot): boolean {
  const area = document.createElement("textarea")
  area.value = text
  area.style.position = "fixed"
  area.style.opacity = "0"
  host.append(area)
  area.select()
  const copied = document.execCommand("copy")
  area.remove()
  return copied
}

export const TABLE_CSS = `${FRAME_CSS}
:host { padding: 8px 0; border-top: 1px solid var(--line); }
.frame { margin-top: 6px; }
table { border-collapse: separate; border-spacing: 0; table-layout: fixed; }
th, td { padding: 2px 8px; text-align: left; border-bottom: 1px solid var(--line); height: 24px; }
th { padding: 0 2px; font-weight: 600; vertical-align: bottom; }
th, th button { white-space: normal; }
th button { border: 0; background: none; width: 100%; text-align: inherit; font-weight: 600; padding: 2px 6px; line-height: 1.25; }
th.number button { text-align: right; }
td { position: relative; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
td.nothing { overflow: visible; }
td.number { text-align: right; }
td.code { font: 12px var(--mono); }
td.whole, th.whole button { color: var(--muted); }
th.whole button { text-decoration: underline dotted; text-underline-offset: 3px; }
th:first-child, td:first-child { position: sticky; left: 0; z-index: 1; background: var(--bg); }
td { user-select: text; }
tr[data-key] { cursor: pointer; }
tr[data-key]:hover, tr[data-key]:hover td:first-child { background: var(--band); }
tr[aria-selected=true], tr[aria-selected=true] td:first-child { background: var(--band); }
tr[aria-selected=true] td:first-child { box-shadow: inset 3px 0 0 var(--accent); }
tr:focus-visible { outline: 2px solid var(--accent); outline-offset: -2px; }
/* The first cell stands above the outline of its row. */
tr:focus-visible td:first-child { box-shadow: inset 3px 2px 0 var(--accent), inset 0 -2px 0 var(--accent); }
td .swatch { background: var(--row); }
/* Bars begin at the left of their column, those of changes in the middle of theirs: so they compare. */
td.bar { background: linear-gradient(var(--soft), var(--soft)) left / var(--to) calc(100% - 4px) no-repeat; }
td.change {
  --from: 50%; --to: 50%;
  background-image: linear-gradient(var(--edge), var(--edge)),
    linear-gradient(to right, transparent var(--from), var(--change, transparent) var(--from) var(--to), transparent var(--to));
  background-size: 1px 100%, ${CHANGE_BAR}px calc(100% - 8px);
  background-position: ${8 + CHANGE_BAR / 2}px 50%, 8px 50%;
  background-repeat: no-repeat;
}
.share { display: inline-block; min-width: var(--share); }
.below, .more { margin-top: 6px; }
.below:empty { display: none; }
input[type=checkbox] { height: auto; vertical-align: -2px; accent-color: var(--accent); }
`
