import {OKABE_ITO} from "./categories"
import {contrast, css, mix} from "./colour"
import type {RGB} from "./colour"
import {button, element} from "./element"
import {format_count, format_ns, format_share, line_instances, line_of_row, line_rows} from "./engine"
import type {LineRow} from "./engine"
import {columns_of} from "./line_columns"
import type {LineColumn} from "./line_columns"
import {cell_texts} from "./line_text"
import type {CellText, TextLine} from "./line_text"
import {Panel, PanelView} from "./panel"
import {LINES_CSS} from "./styles"

const LEGIBLE = 7
/** Of a selection of many events, so many are asked for their line. */
const ASKED = 1000

/** The source of the recorded cells: numbers beside each line, and one of them as heat behind the code. */
export class LinesView extends PanelView {
  declare model: Lines

  protected readonly css = LINES_CSS
  /** Numbers of all lines in the range, in the order of the cells. */
  rows: LineRow[] = []
  private cells: CellText[]
  private columns: LineColumn[]
  private heat: LineColumn
  private chosen = -1
  /** The one line that the Tab key reaches. */
  private reachable = -1
  private readonly lines = new Map<number, HTMLTableRowElement>()
  private table: HTMLTableElement
  private frame: HTMLElement
  private status: HTMLElement

  override connect_signals(): void {
    super.connect_signals()
    const {store} = this
    this.connect(store.properties.window.change, () => this.recompute())
    this.connect(store.selection_changed, () => this.follow_selection())
    this.connect(store.theme.changed, () => this.recolour())
  }

  protected build_content(): Node[] {
    const {data} = this.store
    this.cells = cell_texts(data)
    this.columns = columns_of(line_rows(data, data.whole))
    this.heat = this.columns[0]
    this.table = element("table", {"aria-label": "Lines"})
    this.table.addEventListener("keydown", (event) => this.key(event))
    this.status = element("span", {class: "muted", role: "status"})
    this.frame = element("div", {class: "frame"}, this.table)
    this.recompute()
    return [
      element("div", {class: "row"}, element("h3", {}, "Lines"), this.status,
        element("span", {class: "muted push"}, "Click a line: its executions light up. A heading chooses what the bars show.")),
      this.frame,
    ]
  }

  private recompute(): void {
    this.rows = line_rows(this.store.data, this.store.range)
    this.fill()
  }

  private fill(): void {
    const had_focus = this.table.contains(this.shadow_el.activeElement)
    this.lines.clear()
    this.reachable = this.reachable < 0 ? this.first_line() : this.reachable
    this.table.replaceChildren(this.widths(), this.head(), ...this.cells.map((cell) => this.cell_body(cell)))
    this.status.textContent = this.summary()
    this.recolour()
    this.mark(this.chosen)
    if (had_focus) {
      this.lines.get(this.reachable)?.focus({preventScroll: true})
    }
  }

  private first_line(): number {
    return this.rows.length == 0 ? -1 : 0
  }

  private summary(): string {
    const {window} = this.store
    const ran = this.rows.filter(({wall, calls}) => wall > 0 || calls > 0).length
    const where = window == null ? "whole trace" : `selected range, ${format_ns(window[1] - window[0])}`
    return `${format_count(ran, "line")} ran · ${where}`
  }

  private widths(): HTMLElement {
    return element("colgroup", {}, element("col", {class: "at"}), element("col"),
      ...this.columns.map((column) => element("col", {class: this.class_of(column), style: `width:${column.width + (column == this.heat ? 40 : 0)}px`})))
  }

  private class_of({extra}: LineColumn): string {
    return extra ? "number extra" : "number"
  }

  private head(): HTMLElement {
    return element("thead", {}, element("tr", {},
      element("th", {scope: "col", class: "at"}, element("span", {class: "off"}, "Line")),
      element("th", {scope: "col", class: "code"}, "Code"),
      ...this.columns.map((column) => this.heading(column))))
  }

  private heading(column: LineColumn): HTMLElement {
    const pressed = column == this.heat
    const title = `${column.title}. ${pressed ? "Shown" : "Show it"} as bars behind the code`
    const name = button(column.text, {title, "aria-pressed": String(pressed), "data-heat": column.key}, () => {
      this.heat = column
      this.fill()
      this.table.querySelector<HTMLElement>(`[data-heat="${column.key}"]`)?.focus({preventScroll: true})
    })
    return element("th", {scope: "col", class: this.class_of(column)}, name)
  }

  private cell_body({name, lines}: CellText): HTMLElement {
    const heading = element("tr", {class: "cell"}, element("th", {colspan: this.columns.length + 2, scope: "rowgroup"}, name))
    const largest = Math.max(...this.rows.map((row) => row[this.heat.key]), 0)
    const sum = this.rows.reduce((sum, row) => sum + row[this.heat.key], 0)
    const title = this.cells.length > 1 ? [heading] : []
    return element("tbody", {"aria-label": name}, ...title, ...lines.map((line) => this.line(line, largest, sum)))
  }

  private line(line: TextLine, largest: number, sum: number): HTMLElement {
    if (line.kind == "gap") {
      const words = `⋯ ${format_count(line.lines, "line")} without recorded statements`
      return element("tr", {class: "gap"}, element("td", {class: "at"}), element("td", {colspan: this.columns.length + 1, class: "muted"}, words))
    }
    const {number, text, index} = line
    const at = element("td", {class: "at muted"}, String(number))
    const code = element("span", {class: "text"}, text)
    if (index < 0) {
      return element("tr", {class: "silent"}, at, element("td", {class: "code"}, code), element("td", {colspan: this.columns.length}))
    }
    const row = this.rows[index]
    const share = largest == 0 ? 0 : row[this.heat.key] / largest
    const heat = element("span", {class: "heat", style: `width:${(100 * share).toFixed(2)}%`})
    const el = element("tr", {tabindex: index == this.reachable ? 0 : -1, "data-line": index, "aria-selected": "false", title: text.trim(),
      class: row.wall == 0 && row.calls == 0 ? "silent" : ""},
      at, element("td", {class: "code"}, heat, code), ...this.columns.map((column) => this.number(column, row, sum)))
    el.addEventListener("click", () => this.choose(index))
    this.lines.set(index, el)
    return el
  }

  private number(column: LineColumn, row: LineRow, sum: number): HTMLElement {
    const value = row[column.key]
    const attributes = {class: this.class_of(column), "data-column": column.key, "data-value": value}
    if (value == 0) {
      return element("td", {...attributes, class: `${attributes.class} muted`}, "–")
    }
    const whole = column.adds_up ? sum : this.span()
    const share = column == this.heat && column.key != "calls" && whole > 0
      ? [" ", element("span", {class: "muted"}, format_share(value / whole).replace("less than ", "<"))] : []
    return element("td", attributes, column.format(value), ...share)
  }

  private span(): number {
    const {data, range} = this.store
    return data.ns(range.end - range.start)
  }

  /** The heat's colour is as strong as the page's text allows. */
  private recolour(): void {
    const {background, foreground} = this.store.theme.palette
    let heat: RGB = background
    for (let part = 0.4; part < 1 && (heat === background || contrast(heat, foreground) < LEGIBLE); part += 0.05) {
      heat = mix(OKABE_ITO.orange, background, part)
    }
    this.table.style.setProperty("--heat", css(heat))
  }

  private choose(index: number): void {
    const {store} = this
    this.reachable = index
    if (store.selection?.source == "lines" && store.selection.key == String(index)) {
      store.choose(null)
      return
    }
    const {line, code} = this.rows[index]
    const rows = line_instances(store.data, index)
    const labels = new Set(Array.from(rows, (row) => store.data.label[row]))
    store.choose({source: "lines", row: -1, rows, key: String(index), labels, text: `Line ${line}: ${code}`})
  }

  private follow_selection(): void {
    this.mark(this.line_of_selection())
    const line = this.lines.get(this.chosen)
    if (line != null && this.store.selection?.source != "lines") {
      this.bring_into_view(line)
    }
  }

  private line_of_selection(): number {
    const {selection, data} = this.store
    if (selection == null) {
      return -1
    }
    if (selection.source == "lines") {
      return Number(selection.key)
    }
    const rows = selection.row >= 0 ? [selection.row] : Array.from(selection.rows.subarray(0, ASKED))
    const lines = new Set(rows.map((row) => line_of_row(data, row)))
    return lines.size == 1 ? [...lines][0] : -1
  }

  private mark(index: number): void {
    this.lines.get(this.chosen)?.setAttribute("aria-selected", "false")
    this.lines.get(index)?.setAttribute("aria-selected", "true")
    this.chosen = index
    if (index >= 0 && !this.table.contains(this.shadow_el.activeElement)) {
      this.make_reachable(index)
    }
  }

  private make_reachable(index: number): void {
    this.lines.get(this.reachable)?.setAttribute("tabindex", "-1")
    this.lines.get(index)?.setAttribute("tabindex", "0")
    this.reachable = index
  }

  /** Scrolls the view itself, never the page. */
  private bring_into_view(line: HTMLElement): void {
    const {frame} = this
    const head = this.table.tHead?.offsetHeight ?? 0
    if (line.offsetTop - head < frame.scrollTop) {
      frame.scrollTop = line.offsetTop - head
    } else if (line.offsetTop + line.offsetHeight > frame.scrollTop + frame.clientHeight) {
      frame.scrollTop = line.offsetTop + line.offsetHeight - frame.clientHeight
    }
  }

  private key(event: KeyboardEvent): void {
    const line = event.target instanceof HTMLTableRowElement ? event.target : null
    if (line == null || event.ctrlKey || event.metaKey || event.altKey) {
      return
    }
    const all = [...this.lines.keys()]
    const place = all.indexOf(Number(line.dataset.line))
    const to = {ArrowDown: place + 1, ArrowUp: place - 1, Home: 0, End: all.length - 1}[event.key]
    if (to != null) {
      this.make_reachable(all[Math.max(0, Math.min(to, all.length - 1))])
      this.lines.get(this.reachable)!.focus({preventScroll: true})
      this.bring_into_view(this.lines.get(this.reachable)!)
    } else if (event.key == "Enter" || event.key == " ") {
      this.choose(Number(line.dataset.line))
    } else {
      return
    }
    event.preventDefault()
    event.stopPropagation()
  }
}

export class Lines extends Panel {
  declare __view_type__: LinesView

  static override __module__ = "gpuprof_widgets.views.models"

  static {
    this.prototype.default_view = LinesView
  }
}
