import {kind_of} from "./categories"
import {css} from "./colour"
import {copy_text} from "./clipboard"
import {button, choice, element} from "./element"
import {format_count, format_ns, format_share, op_row_instances, op_row_key, op_table, recorded, self_times, to_csv} from "./engine"
import type {Grouping, OpRow, SelfTimes} from "./engine"
import {matcher} from "./matcher"
import {columns_for, first_order, sorted} from "./op_columns"
import type {Column, Order} from "./op_columns"
import {Panel, PanelView} from "./panel"
import {TABLE_CSS} from "./styles"

const FIRST_ROWS = 20

const GROUPINGS: [Grouping, string][] = [["name", "name"], ["name_shape", "name and shape"], ["category", "category"]]

/** What "Show" offers before the single categories: at first no GPU work, whose time its op has too. */
const CPU_SIDE = "cpu"
const EVERYTHING = "all"
const GPU_WORK = new Set(["kernel", "gpu_memcpy", "gpu_memset"])

/** The op table: an ordinary table whose heads are buttons and whose rows take the focus. */
export class OpTableView extends PanelView {
  declare model: OpTable

  protected readonly css = TABLE_CSS
  grouping: Grouping = "name"
  /** All rows of the range, sorted, before the filter. */
  rows: OpRow[] = []
  /** What shares are of. */
  private totals: SelfTimes
  private columns: Column[]
  private order: Order
  private show_all = false
  private filter = ""
  private as_regex = false
  private shown = CPU_SIDE
  private cursor_key: string | null = null
  private table: HTMLTableElement
  private more: HTMLButtonElement
  private below: HTMLElement
  private status: HTMLElement
  private filter_input: HTMLInputElement

  override connect_signals(): void {
    super.connect_signals()
    const {store} = this
    this.connect(store.properties.window.change, () => this.recompute())
    this.connect(store.selection_changed, () => this.fill())
    this.connect(store.was_reset, () => this.reset())
  }

  protected build_content(): Node[] {
    this.columns = columns_for(this.store.on_gpu, recorded(this.store.data))
    this.order = first_order(this.store.sort, this.columns)
    const has_quantities = this.columns.some(({unit, key}) => unit == "_bytes" || key == "flops")
    this.table = element("table", {"aria-label": "Operators", class: has_quantities ? "many" : ""})
    this.table.addEventListener("keydown", (event) => this.key(event))
    this.status = element("span", {class: "muted", role: "status"})
    this.more = button("", {class: "more"}, () => {
      this.show_all = !this.show_all
      this.fill()
    })
    this.below = element("p", {class: "number below"})
    const view = [this.tools(), element("div", {class: "frame"}, this.table), this.below, this.more]
    this.recompute()
    return view
  }

  private tools(): HTMLElement {
    this.filter_input = element("input", {type: "search", placeholder: "Filter names", "aria-label": "Filter names", size: 18})
    this.filter_input.addEventListener("input", () => this.refine(() => { this.filter = this.filter_input.value }))
    const regex = button(".*", {title: "Read the filter as a regular expression", "aria-label": "Regular expression", "aria-pressed": "false"}, () => {
      this.refine(() => { this.as_regex = !this.as_regex })
      regex.setAttribute("aria-pressed", String(this.as_regex))
    })
    const {categories} = this.store.data.header
    return element("div", {class: "row"},
      element("h3", {}, "Operators"), this.status,
      element("div", {class: "row push"},
        this.filter_input, regex,
        choice("Show", [[CPU_SIDE, "ops and runtime calls"], [EVERYTHING, "all categories"], ...categories.map((name): [string, string] => [name, name])], CPU_SIDE,
          (value) => this.refine(() => { this.shown = value })),
        choice("Group by", GROUPINGS, this.grouping, (value) => {
          this.grouping = value as Grouping
          this.recompute()
        }),
        button("Copy CSV", {}, () => void this.copy())))
  }

  private refine(change: () => void): void {
    change()
    this.fill()
  }

  private reset(): void {
    this.filter = ""
    this.filter_input.value = ""
    this.fill()
  }

  private recompute(): void {
    this.rows = op_table(this.store.data, this.store.range, this.grouping)
    this.totals = self_times(this.store.data, this.rows)
    this.below.textContent = this.totals_text()
    this.fill()
  }

  /** The rows that pass the filters, in order; null where the pattern is no regular expression. */
  private filtered(): OpRow[] | null {
    const {test, error} = matcher(this.filter, this.as_regex)
    if (error != null) {
      this.status.textContent = error
      return null
    }
    const wanted = this.rows.filter((row) => test(row.name) && this.is_shown(row))
    return sorted(wanted, this.order)
  }

  private is_shown({category}: OpRow): boolean {
    if (this.shown == CPU_SIDE) {
      return this.grouping == "category" || !GPU_WORK.has(category)
    }
    return this.shown == EVERYTHING || this.shown == category
  }

  private fill(): void {
    const rows = this.filtered()
    if (rows == null) {
      return
    }
    this.status.textContent = this.summary(rows)
    const had_focus = this.table.contains(this.shadow_el.activeElement)
    const chosen = this.chosen_key()
    const shown = this.show_all ? rows : rows.slice(0, FIRST_ROWS)
    // What was selected in another view is shown, whatever is filtered out; not if that view lies below and would move.
    const is_below = this.store.selection?.source == "panel"
    const hidden = is_below || shown.some(({key}) => key == chosen) ? undefined : this.rows.find(({key}) => key == chosen)
    const visible = hidden == null ? shown : [...shown, hidden]
    this.cursor_key = visible.some(({key}) => key == this.cursor_key) ? this.cursor_key : chosen ?? visible[0]?.key ?? null
    this.table.replaceChildren(this.widths(), this.head(), this.body(visible, chosen))
    this.more.hidden = rows.length <= FIRST_ROWS
    this.more.textContent = this.show_all ? `Show the first ${FIRST_ROWS}` : `Show all ${rows.length} rows`
    if (had_focus) {
      this.focus_cursor()
    }
  }

  private summary(rows: OpRow[]): string {
    const {window} = this.store
    const where = window == null ? "whole trace" : `selected range, ${format_ns(window[1] - window[0])}`
    return `${format_count(rows.length, "row")} · ${where}`
  }

  /** As torch writes them below its table. */
  private totals_text(): string {
    const {cpu, gpu} = this.totals
    const sides: [string, number | null][] = [["CPU", cpu], ["GPU", gpu]]
    return sides.flatMap(([side, ns]) => ns == null ? [] : [`Self ${side} time total: ${format_ns(ns)}`]).join(" · ")
  }

  private widths(): HTMLElement {
    const shape = this.grouping == "name_shape" ? [element("col", {style: "width:24%"})] : []
    return element("colgroup", {}, element("col"), ...shape,
      ...this.columns.map(({width, extra}) => element("col", {style: `width:${width}`, class: extra ? "extra" : ""})))
  }

  private head(): HTMLElement {
    const name = this.heading("name", this.grouping == "category" ? "Category" : "Name", "Sort by name", "")
    const shape = this.grouping == "name_shape" ? [element("th", {class: "shape", scope: "col"}, "Input shapes")] : []
    return element("thead", {}, element("tr", {}, name, ...shape,
      ...this.columns.map(({key, text, title, extra}) => this.heading(key, text, title, extra ? "number extra" : "number"))))
  }

  private heading(key: string, text: string, title: string, css_class: string): HTMLElement {
    const active = this.order.key == key
    const direction = this.order.descending ? "descending" : "ascending"
    const sign = active ? this.order.descending ? " ▾" : " ▴" : ""
    const head = button(text + sign, {title, "data-sort": key}, () => {
      this.order = {key, descending: active ? !this.order.descending : key != "name"}
      this.fill()
      this.table.querySelector<HTMLElement>(`[data-sort="${key}"]`)?.focus()
    })
    return element("th", {scope: "col", class: css_class, "aria-sort": active ? direction : "none"}, head)
  }

  private body(rows: OpRow[], chosen: string | null): HTMLElement {
    if (rows.length == 0) {
      const none = element("td", {colspan: this.columns.length + 2, class: "muted"}, this.is_without_ops()
        ? "No ops in this trace." : "No operators here: widen the range or the filter.")
      return element("tbody", {}, element("tr", {}, none))
    }
    return element("tbody", {}, ...rows.map((row) => this.line(row, row.key == chosen)))
  }

  /** Whether no range and no filter is to blame for an empty table. */
  private is_without_ops(): boolean {
    return this.store.window == null && this.filter == "" && this.rows.every(({category}) => GPU_WORK.has(category))
  }

  private line(row: OpRow, selected: boolean): HTMLTableRowElement {
    const colour = css(kind_of(row.category).colour)
    const name = element("td", {title: `${row.name} (${row.category})`},
      element("span", {class: "swatch", style: `background:${colour}`, title: row.category}), row.name)
    const shape = this.grouping == "name_shape" ? [this.shape_cell(row)] : []
    const line = element("tr", {tabindex: row.key == this.cursor_key ? 0 : -1, "aria-selected": String(selected), "data-key": row.key},
      name, ...shape, ...this.columns.map((column) => this.cell(column, row, colour)))
    line.addEventListener("click", () => {
      this.cursor_key = row.key
      this.toggle(row)
    })
    return line
  }

  private shape_cell({shape}: OpRow): HTMLElement {
    const text = shape < 0 ? "" : this.store.data.header.shapes[shape]
    return element("td", {class: "shape", title: text}, text)
  }

  private cell(column: Column, row: OpRow, colour: string): HTMLElement {
    const text = column.format(row)
    const value = column.value(row)
    const sum = (column.share_of == null ? null : this.totals[column.share_of]) ?? 0
    if (value == 0 || sum == 0) {
      const css_class = column.extra ? "number extra" : "number"
      return element("td", {class: css_class, "data-column": column.key, "data-value": value, title: column.note?.(row) ?? null}, text)
    }
    const share = value / sum
    const fill = element("span", {class: "fill", style: `width:calc((100% - 16px) * ${Math.min(1, share)});--bar:${colour}`})
    return element("td", {class: "number share", "data-column": column.key, "data-value": value},
      text, " ", element("span", {class: "muted"}, share < 0.0005 ? "<0.1 %" : format_share(share)), fill)
  }

  /** Key of the row that is selected, in whichever view that was done. */
  private chosen_key(): string | null {
    const {selection} = this.store
    if (selection == null) {
      return null
    }
    if (selection.source == "table") {
      return selection.key
    }
    const row = selection.row >= 0 ? selection.row : selection.rows[0]
    return row == null ? null : op_row_key(this.store.data, this.grouping, row)
  }

  private toggle(row: OpRow): void {
    const {store, grouping} = this
    if (store.selection?.source == "table" && store.selection.key == row.key) {
      store.choose(null)
      return
    }
    const rows = op_row_instances(store.data, grouping, row.key)
    store.choose({source: "table", row: -1, rows, key: row.key, labels: new Set(Array.from(rows, (i) => store.data.label[i])), text: row.name})
  }

  private focus_cursor(): void {
    const lines = [...this.table.querySelectorAll<HTMLElement>("tbody tr")]
    lines.find(({dataset}) => dataset.key == this.cursor_key)?.focus({preventScroll: true})
  }

  private key(event: KeyboardEvent): void {
    const line = event.target instanceof HTMLTableRowElement ? event.target : null
    if (line != null && this.row_key(event.key, line)) {
      event.preventDefault()
      event.stopPropagation()
    }
  }

  private row_key(key: string, line: HTMLTableRowElement): boolean {
    const lines = [...line.parentElement!.children] as HTMLTableRowElement[]
    const to = {ArrowDown: lines.indexOf(line) + 1, ArrowUp: lines.indexOf(line) - 1, Home: 0, End: lines.length - 1}[key]
    if (to != null) {
      const next = lines[Math.max(0, Math.min(to, lines.length - 1))]
      line.tabIndex = -1
      next.tabIndex = 0
      next.focus()
      this.cursor_key = next.dataset.key ?? null
      return true
    }
    if (key == "Enter" || key == " ") {
      line.click()
      return true
    }
    return false
  }

  private async copy(): Promise<void> {
    const rows = this.filtered() ?? []
    const {shapes} = this.store.data.header
    const heads = ["name", "category", "input_shapes", ...this.columns.map(({key, unit}) => key + unit)]
    const lines = rows.map((row) =>
      [row.name, row.category, row.shape < 0 ? "" : shapes[row.shape], ...this.columns.map((column) => column.value(row))])
    const copied = await copy_text(to_csv(heads, lines), this.shadow_el)
    this.status.textContent = copied ? `Copied ${format_count(rows.length, "row")} (times in ns, sizes in bytes)` : "The browser did not allow copying"
  }
}

export class OpTable extends Panel {
  declare __view_type__: OpTableView

  static override __module__ = "gpuprof_widgets.views.models"

  static {
    this.prototype.default_view = OpTableView
  }
}
