import type * as p from "@bokehjs/core/properties"

import {copy_text} from "./clipboard"
import {css} from "./colour"
import {DELTA_COLUMNS, delta, sorted_deltas} from "./delta_columns"
import type {DeltaColumn, DeltaRow} from "./delta_columns"
import {GREW, SHRANK} from "./diff_colour"
import {button, choice, element} from "./element"
import {format_count, merged_name, to_csv} from "./engine"
import type {Store} from "./engine"
import {Panel, PanelView} from "./panel"
import {StoreGroup} from "./store_group"
import {DELTA_CSS, TABLE_CSS} from "./styles"

type DeltaKind = {key: string, title: string, noun: string, rows: DeltaRow[], total: number}

const FIRST_ROWS = 20
const REAL = new Set(["added", "gone", "more", "less"])

/** Tables of what differs; a row lights up its events in both timelines. */
export class DeltaTableView extends PanelView {
  declare model: DeltaTable

  protected readonly css = TABLE_CSS + DELTA_CSS
  private kind: DeltaKind
  private order = {key: "delta", descending: true}
  private everything = false
  private show_all = false
  private filter = ""
  private current: DeltaRow | null = null
  private table: HTMLTableElement
  private status: HTMLElement
  private more: HTMLButtonElement

  get kinds(): DeltaKind[] {
    return this.model.tables as DeltaKind[]
  }

  override async lazy_initialize(): Promise<void> {
    await super.lazy_initialize()
    await this.model.group.ready
  }

  override connect_signals(): void {
    super.connect_signals()
    this.connect(this.model.group.selection_changed, () => this.fill())
    this.connect(this.store.was_reset, () => {
      this.filter = ""
      this.shadow_el.querySelector<HTMLInputElement>("input[type=search]")!.value = ""
      this.fill()
    })
  }

  protected build_content(): Node[] {
    this.kind = this.kinds[0]
    this.table = element("table", {"aria-label": "Differences"})
    this.table.addEventListener("keydown", (event) => this.key(event))
    this.status = element("span", {class: "muted number", role: "status"})
    this.more = button("", {class: "more"}, () => {
      this.show_all = !this.show_all
      this.fill()
    })
    const search = element("input", {type: "search", placeholder: "Filter", "aria-label": "Filter the differences", size: 18})
    search.addEventListener("input", () => {
      this.filter = search.value
      this.fill()
    })
    const every = element("input", {type: "checkbox"})
    every.addEventListener("change", () => {
      this.everything = every.checked
      this.fill()
    })
    const tables = choice("Show", this.kinds.map(({key, title}): [string, string] => [key, title]), this.kind.key, (key) => {
      this.kind = this.kinds.find((kind) => kind.key == key)!
      this.show_all = false
      this.fill()
    })
    this.fill()
    return [
      element("div", {class: "row"}, element("h3", {}, "What differs"), tables, this.status,
        element("div", {class: "row push"}, element("label", {class: "choice"}, every, " also noise and the same"), search,
          button("Copy", {title: "Copy these rows as CSV, times in ns"}, () => void this.copy()))),
      element("div", {class: "frame"}, this.table), this.more,
    ]
  }

  private filtered(): DeltaRow[] {
    const wanted = this.filter.toLowerCase()
    const is_shown = ({name, change}: DeltaRow): boolean =>
      (this.everything || REAL.has(change)) && name.toLowerCase().includes(wanted)
    const rows = this.kind.rows.filter(is_shown)
    return sorted_deltas(rows, this.order.key, this.order.descending)
  }

  private fill(): void {
    const rows = this.filtered()
    const shown = this.show_all ? rows : rows.slice(0, FIRST_ROWS)
    const left_out = this.kind.total - this.kind.rows.length
    this.status.textContent = format_count(rows.length, "row") + (left_out > 0 ? `; ${left_out} that moved less are left out` : "")
    const had_focus = this.table.contains(this.shadow_el.activeElement)
    this.current = this.current != null && shown.includes(this.current) ? this.current : shown[0] ?? null
    const most = Math.max(1, ...this.kind.rows.map((row) => Math.abs(delta(row))))
    this.table.replaceChildren(
      element("colgroup", {}, element("col"), ...this.columns.map(({width, extra}) =>
        element("col", {style: `width:${width}`, class: extra ? "extra" : ""}))),
      this.head(), this.body(shown, most))
    this.more.hidden = rows.length <= FIRST_ROWS
    this.more.textContent = this.show_all ? `Show the first ${FIRST_ROWS}` : `Show all ${rows.length} rows`
    if (had_focus) {
      this.table.querySelector<HTMLElement>("tbody tr[tabindex='0']")?.focus({preventScroll: true})
    }
  }

  /** Those that say something of this table. */
  private get columns(): DeltaColumn[] {
    const {rows} = this.kind
    return DELTA_COLUMNS.filter(({key}) => key != "calls" && key != "spread" || rows.some((row) => row[key] != null))
  }

  private head(): HTMLElement {
    return element("thead", {}, element("tr", {}, this.heading("name", this.kind.noun, "Sort by name", ""),
      ...this.columns.map(({key, text, title, extra}) => this.heading(key, text, title, extra ? "number extra" : "number"))))
  }

  private heading(key: string, text: string, title: string, css_class: string): HTMLElement {
    const active = this.order.key == key
    const sign = active ? this.order.descending ? " ▾" : " ▴" : ""
    const head = button(text + sign, {title, "data-sort": key}, () => {
      this.order = {key, descending: active ? !this.order.descending : key != "name"}
      this.fill()
      this.table.querySelector<HTMLElement>(`[data-sort="${key}"]`)?.focus()
    })
    const direction = this.order.descending ? "descending" : "ascending"
    return element("th", {scope: "col", class: css_class, "aria-sort": active ? direction : "none"}, head)
  }

  private body(rows: DeltaRow[], most: number): HTMLElement {
    if (rows.length == 0) {
      const text = this.filter != "" ? "Nothing of that name differs." : "Nothing differs beyond the noise."
      return element("tbody", {}, element("tr", {}, element("td", {colspan: this.columns.length + 1, class: "muted"}, text)))
    }
    return element("tbody", {}, ...rows.map((row) => this.line(row, most)))
  }

  private line(row: DeltaRow, most: number): HTMLTableRowElement {
    const selectable = row.category != ""
    const [a, b] = row.names.map((names) => names.join(", "))
    const line = element("tr", {
      tabindex: row === this.current ? 0 : -1, "aria-selected": String(this.is_chosen(row)), class: selectable ? "" : "fixed",
      title: selectable ? "Highlight its events in both timelines" : null,
    }, element("td", {title: a == b ? row.name : `A: ${a}\nB: ${b}`}, row.name),
    ...this.columns.map((column) => this.cell(column, row, most)))
    line.addEventListener("click", () => {
      this.current = row
      this.choose(row)
    })
    return line
  }

  private cell({key, format, extra}: DeltaColumn, row: DeltaRow, most: number): HTMLElement {
    const css_class = `number${extra ? " extra" : ""}`
    if (key != "delta") {
      return element("td", {class: css_class, "data-column": key}, format(row))
    }
    // To the right of the zero mark what grew, to the left of it what shrank.
    const part = delta(row) / most * 50
    const side = part < 0 ? `right:50%;background:${css(SHRANK)}` : `left:calc(50% + 1px);background:${css(GREW)}`
    const bar = part == 0 ? [] : [element("span", {style: `width:${Math.abs(part)}%;${side}`})]
    return element("td", {class: `${css_class} delta`, "data-column": key, "data-value": delta(row)}, format(row),
      element("span", {class: "bars", "aria-hidden": "true"}, ...bar))
  }

  private is_chosen(row: DeltaRow): boolean {
    const key = this.key_of(row)
    return this.model.group.stores.some(({selection}) => selection?.source == "table" && selection.key == key)
  }

  private key_of({name, category}: DeltaRow): string {
    return `${this.kind.key}\n${category}\n${name}`
  }

  private choose(row: DeltaRow): void {
    const {group} = this.model
    if (row.category == "") {
      return
    }
    const again = this.is_chosen(row)
    group.choose(group.stores.map(({data}, side) => {
      if (again) {
        return null
      }
      const labels = labels_of(data, new Set(row.names[side]), row.category)
      const rows = Int32Array.from([...labels].flatMap((label) => [...data.instances(label)])).sort()
      return {source: "table", row: -1, rows, key: this.key_of(row), labels, text: row.name}
    }))
  }

  private key(event: KeyboardEvent): void {
    const line = event.target instanceof HTMLTableRowElement ? event.target : null
    const lines = [...this.table.querySelectorAll<HTMLTableRowElement>("tbody tr[tabindex]")]
    const at = line == null ? -1 : lines.indexOf(line)
    const to = {ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: lines.length - 1}[event.key]
    if (at < 0 || (to == null && event.key != "Enter" && event.key != " ")) {
      return
    }
    event.preventDefault()
    event.stopPropagation()
    if (to == null) {
      line!.click()
      return
    }
    const next = lines[Math.max(0, Math.min(to, lines.length - 1))]
    line!.tabIndex = -1
    next.tabIndex = 0
    next.focus()
    this.current = this.filtered()[lines.indexOf(next)] ?? this.current
  }

  private async copy(): Promise<void> {
    const rows = this.filtered()
    const lines = rows.map((row) =>
      [row.name, row.category, row.change, ...row.time, delta(row), row.spread ?? "", ...row.calls ?? ["", ""]])
    const heads = ["name", "category", "change", "a_ns", "b_ns", "delta_ns", "spread_ns", "calls_a", "calls_b"]
    const copied = await copy_text(to_csv(heads, lines), this.shadow_el)
    this.status.textContent = copied ? `Copied ${format_count(rows.length, "row")} (times in ns)` : "The browser did not allow copying"
  }
}

/** The labels of these names; all steps of a profiler go by one name. */
function labels_of({header: {label, names, categories}}: Store, wanted: Set<string>, category: string): Set<number> {
  const is_wanted = ([name, of]: [number, number]): boolean => wanted.has(merged_name(names[name])) && categories[of].startsWith(category)
  return new Set(label.flatMap((pair, i) => is_wanted(pair) ? [i] : []))
}

export class DeltaTable extends Panel {
  declare properties: DeltaTable.Props
  declare __view_type__: DeltaTableView

  static override __module__ = "gpuprof_widgets.views.models"

  static {
    this.prototype.default_view = DeltaTableView
    this.define<DeltaTable.Props>(({List, Ref, Unknown}) => ({
      group: [Ref(StoreGroup)],
      tables: [List(Unknown), []],
    }))
  }
}

export namespace DeltaTable {
  export type Attrs = p.AttrsOf<Props>
  export type Props = Panel.Props & {
    group: p.Property<StoreGroup>
    tables: p.Property<unknown[]>
  }
}

export interface DeltaTable extends DeltaTable.Attrs {}
