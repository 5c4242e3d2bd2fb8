import type * as p from "@bokehjs/core/properties"

import {choice, element} from "./element"
import {format_count, listed_name, merged_name, type Cell, type Column, type Order, type Store, type TableHeader} from "./engine"
import {Panel} from "./panel"
import {StoreGroup} from "./store_group"
import {TableView} from "./table"

/** A table of views/comparison.py; `names`: those of a row's events in each run; `category`: that of the events, "" for none. */
type Deltas = TableHeader & {
  key: string
  noun: string
  total: number
  /** per row whether it is more than noise */
  changed: boolean[]
  category: string[]
  names: [string[], string[]][]
}

/** Tables of the differences; a row lights up its events in both timelines. */
export class DeltaTableView extends TableView<number> {
  declare model: DeltaTable

  private deltas: Deltas
  private everything = false
  private shown: HTMLLabelElement

  get tables(): Deltas[] {
    return this.model.tables as Deltas[]
  }

  override async lazy_initialize(): Promise<void> {
    this.deltas = this.tables[0]
    await super.lazy_initialize()
    await this.model.group.ready
  }

  override connect_signals(): void {
    super.connect_signals()
    this.connect(this.model.group.selection_changed, () => this.fill())
    this.connect(this.store.functions_called, () => this.show_functions())
  }

  protected get title(): string {
    return "What differs"
  }

  protected override first_order(): Order {
    const {sort} = this.deltas
    return {key: sort, descending: sort != "order"} // the source stands in its own order
  }

  protected list_columns(): Column<number>[] {
    const {columns, values, category} = this.deltas
    const shown = columns.map(([key, label, unit], at): Column<number> =>
      ({key, label, unit, title: TITLES[key], is_code: key == "code", is_hidden: key == "order", note: key == "name" ? (row) => this.names_of(row) : undefined, value: (row) => values[at][row]}))
    return [...shown, {key: "category", label: "Category", unit: "text", value: (row) => category[row], is_hidden: true}]
  }

  /** Returns the names of a row in both runs. */
  private names_of(row: number): string {
    const [a, b] = this.deltas.names[row].map((names) => names.join(", "))
    return a == b ? String(this.value("name", row)) : `A: ${a}\nB: ${b}`
  }

  private value(key: string, row: number): Cell {
    return this.columns.find((column) => column.key == key)!.value(row)
  }

  protected list_rows(): number[] {
    return Array.from({length: this.deltas.length}, (_, row) => row)
  }

  protected override tools(): Node[] {
    const every = element("input", {type: "checkbox"})
    every.addEventListener("change", () => {
      this.everything = every.checked
      this.change_columns()
    })
    this.shown = choice("Show", this.tables.map(({key, title}): [string, string] => [key, title]), this.deltas.key, (key) => {
      this.deltas = this.tables.find((other) => other.key == key)!
      this.show_table()
    })
    return [element("label", {class: "choice"}, every, " Include noise and unchanged"), this.shown]
  }

  /** Shows the functions, with those that were found. */
  private show_functions(): void {
    const deltas = this.tables.find(({noun}) => noun == "Function")
    if (deltas != null) {
      this.deltas = deltas
      this.shown.querySelector("select")!.value = deltas.key
      this.show_table()
      this.call_up()
    }
  }

  protected override is_listed(row: number): boolean {
    return this.everything || this.deltas.changed[row]
  }

  protected override is_selectable(row: number): boolean {
    return this.deltas.category[row] != ""
  }

  protected summary(count: number): string {
    const left_out = this.deltas.total - this.deltas.length
    return format_count(count, "row") + (left_out > 0 ? `; ${left_out.toLocaleString("en")} with smaller differences left out` : "")
  }

  protected override nothing(): string {
    return this.is_filtered ? super.nothing() : "Nothing differs beyond the noise."
  }

  protected key_of(row: number): string {
    return `${this.deltas.key} ${row}`
  }

  protected chosen_keys(): Set<string> {
    const selections = this.model.group.stores.map(({selection}) => selection)
    const matches = selections.find((selection) => selection?.source == "search")?.matches
    const is_found = (name: string): boolean => matches != null && (matches(name) || matches(listed_name(name)))
    const found = this.rows.filter((row) => this.deltas.names[row].flat().some(is_found))
    return new Set([...found.map((row) => this.key_of(row)), ...selections.flatMap((selection) => selection?.source == "table" ? [selection.key] : [])])
  }

  protected choose(row: number): void {
    const {group} = this.model
    const key = this.key_of(row)
    if (this.chosen_keys().has(key)) {
      group.choose(group.stores.map(() => null))
      return
    }
    group.choose(group.stores.map(({data}, side) => {
      const {names, category} = this.deltas
      const labels = labels_of(data, new Set(names[row][side]), category[row])
      const rows = Int32Array.from([...labels].flatMap((label) => [...data.instances(label)])).sort()
      const text = this.deltas.key == "source" ? names[row][side].join() : String(this.value("name", row))
      return {source: "table", row: -1, rows, key, labels, text}
    }))
  }
}

const TITLES: Record<string, string> = {
  delta_ns: "Time in B minus time in A; sorts by size, whatever the sign",
  a_ns: "Time in A",
  b_ns: "Time in B",
  ratio: "Time in B divided by time in A",
  spread_ns: "How much the steps of one run differ (interquartile range)",
  calls_delta: "Calls in B minus calls in A",
  change: "Whether it is more, less, in one run only, or noise",
}

/** The labels of these names; all steps of a profiler go by one name. */
function labels_of({header: {label, names, categories}}: Store, wanted: Set<string>, category: string): Set<number> {
  const is_wanted = ([name, of]: [number, number]): boolean => wanted.has(merged_name(names[name])) && categories[of].startsWith(category)
  return new Set(label.flatMap((pair, i) => is_wanted(pair) ? [i] : []))
}

type DeltaTableProps = {
  group: p.Property<StoreGroup>
  tables: p.Property<unknown[]>
}

export interface DeltaTable extends p.AttrsOf<DeltaTableProps> {}

export class DeltaTable extends Panel {
  static {
    this.prototype.default_view = DeltaTableView
    this.define<DeltaTableProps>(({List, Ref, Unknown}) => ({
      group: [Ref(StoreGroup)],
      tables: [List(Unknown), []],
    }))
  }
}
