import {FAMILIES, kind_of} from "./categories"
import {css} from "./colour"
import {choice} from "./element"
import {
  cell_text, compare_names, format_count, format_ns, op_row_instances, op_row_keys, recorded, self_times, type Column,
  type Grouping, type OpRow, type Order, type Recorded, type SelfTimes, type Window,
} from "./engine"
import {Panel} from "./panel"
import {marked_rows} from "./selection"
import {TableView} from "./table"

const GROUPINGS: [Grouping, string][] = [["name", "name"], ["name_shape", "name and shape"], ["category", "category"]]

/** Choices of "Show" before the single categories. At first GPU work is hidden: its op has that time too. */
const CPU_SIDE = "cpu"
const EVERYTHING = "all"
const GPU_WORK = new Set(["kernel", "gpu_memcpy", "gpu_memset"])

/** Torch's table of the ops, for the brushed range. */
export class OpTableView extends TableView<OpRow> {
  declare model: OpTable

  /** The totals of which shares are computed. */
  private self_times: SelfTimes
  private shown = CPU_SIDE
  private group_by: HTMLLabelElement
  /** The sort key with which the table opened. */
  private first_sort: string

  get grouping(): Grouping {
    return this.store.group_by as Grouping
  }

  override connect_signals(): void {
    super.connect_signals()
    const {group_by, sort} = this.store.properties
    this.connect(group_by.change, () => this.follow_grouping())
    this.connect(sort.change, () => this.follow_sort())
  }

  private follow_grouping(): void {
    (this.group_by.control as HTMLSelectElement).value = this.grouping
    this.change_columns()
  }

  private follow_sort(): void {
    const {sort} = this.store
    if (this.order == null || sort_key(this.order) != sort) {
      this.sort_by(nearest_order(sort, this.shown_columns))
    }
  }

  protected override show_table(): void {
    this.first_sort = this.store.sort
    super.show_table()
  }

  /** The order may be that of another column than was asked for: the nearest that there is. */
  protected override on_columns_changed(): void {
    this.store.sort = sort_key(this.order!)
  }

  protected override sort_by(order: Order): void {
    super.sort_by(order)
    this.store.sort = sort_key(order)
  }

  protected get title(): string {
    return "Op table"
  }

  protected override first_order(): Order {
    return nearest_order(this.first_sort, this.list_columns().filter(({is_hidden}) => !is_hidden))
  }

  protected list_columns(): Column<OpRow>[] {
    const {shapes} = this.store.data.header
    const shape = ({shape}: OpRow): string => shape < 0 ? "" : shapes[shape]
    const has_shape = this.grouping == "name_shape"
    return [
      {
        key: "name", label: this.grouping == "category" ? "Category" : "Name", unit: "text", has_swatch: true,
        value: ({name}) => name, note: ({name, category}) => `${name} (${category})`,
      },
      {key: "category", label: "Category", unit: "text", value: ({category}) => category, is_hidden: true},
      {key: "input_shapes", label: "Input shapes", unit: "text", value: shape, is_hidden: !has_shape},
      ...this.number_columns(),
    ]
  }

  /** Returns the columns of numbers, without those of the GPU where there is none, and without unrecorded ones. */
  private number_columns(): Column<OpRow>[] {
    const time = (key: string, label: string, title: string, value: (row: OpRow) => number, of?: keyof SelfTimes): Column<OpRow> =>
      ({key, label, unit: "ns", title, value, share: of == null ? undefined : (row) => value(row) / (this.self_times[of] ?? Infinity)})
    const gpu = [
      time("device_self_ns", "GPU self", "GPU time of what the op itself launched, and its share of all GPU self time", (row) => row.device_self, "gpu"),
      time("device_total_ns", "GPU total", "GPU time of everything that was launched within the op", (row) => row.device_total),
    ]
    return [
      CALLS, ...this.store.on_gpu ? gpu : [],
      time("cpu_self_ns", "CPU self", "CPU time of the op without what it called, and its share of all CPU self time", (row) => row.cpu_self, "cpu"),
      time("cpu_total_ns", "CPU total", "CPU time of the op with what it called, and its share of all CPU self time", (row) => row.cpu_total, "cpu"),
      time("cpu_average_ns", "CPU avg", "CPU total per call", ({calls, cpu_total}) => calls == 0 ? 0 : cpu_total / calls),
      ...QUANTITIES.filter(({of}) => recorded(this.store.data)[of]),
    ]
  }

  protected async list_rows(range: Window | null): Promise<OpRow[]> {
    const {store, grouping} = this
    const rows = await store.ask("op_table", {window: range ?? store.data.whole, grouping}, this)
    return [...rows].sort((a, b) => compare_names(a.name, b.name))
  }

  protected override add_up(): void {
    super.add_up()
    this.self_times = self_times(this.store.data, this.rows)
  }

  protected override tools(): Node[] {
    const {categories} = this.store.data.header
    const shown: [string, string][] = [[CPU_SIDE, "ops and runtime calls"], [EVERYTHING, "all categories"], ...categories.map((name): [string, string] => [name, name])]
    this.group_by = choice("Group by", GROUPINGS, this.grouping, (value) => { this.store.group_by = value })
    return [
      choice("Show", shown, CPU_SIDE, (value) => {
        this.shown = value
        this.change_columns()
      }),
      this.group_by,
    ]
  }

  protected override is_listed({category}: OpRow): boolean {
    if (this.shown == CPU_SIDE) {
      return this.grouping == "category" || !GPU_WORK.has(category)
    }
    return this.shown == EVERYTHING || this.shown == category
  }

  /** The colour of its bars; all kernels together have that of their category. */
  protected override colour_of({category, label}: OpRow): string {
    const family = this.grouping == "category" ? null : FAMILIES[this.store.data.header.families[label]]
    return css((family ?? kind_of(category)).colour)
  }

  protected summary(count: number): string {
    return `${format_count(count, "row")} · ${this.where}`
  }

  protected override nothing(): string {
    // Whether no range and no filter is to blame for it.
    const is_without_ops = this.store.window == null && !this.is_filtered && this.rows.every(({category}) => GPU_WORK.has(category))
    return is_without_ops ? "No ops in this trace." : "No ops here: widen the range or clear the filter."
  }

  /** Returns the totals that torch writes below its table. */
  protected override totals(): string {
    const {cpu, gpu} = this.self_times
    const sides: [string, number | null][] = [["CPU", cpu], ["GPU", gpu]]
    return sides.flatMap(([side, ns]) => ns == null ? [] : [`Self ${side} time total: ${format_ns(ns)}`]).join(" · ")
  }

  protected key_of({key}: OpRow): string {
    return key
  }

  protected chosen_keys(): Set<string> {
    const {selection} = this.store
    if (selection == null) {
      return new Set()
    }
    return selection.source == "table" ? new Set([selection.key]) : op_row_keys(this.store.data, this.grouping, marked_rows(selection))
  }

  protected choose({key, name}: OpRow): void {
    const {store, grouping} = this
    if (store.selection?.source == "table" && store.selection.key == key) {
      store.choose(null)
      return
    }
    const rows = op_row_instances(store.data, grouping, key)
    store.choose({source: "table", row: -1, rows, key, labels: new Set(Array.from(rows, (i) => store.data.label[i])), text: name})
  }
}

/** Whether only the GPU work of an op lies in the range. */
function began_before({calls, device_total}: OpRow): boolean {
  return calls == 0 && device_total > 0
}

const CALLS: Column<OpRow> = {
  key: "calls", label: "Calls", unit: "count", title: "Calls that began in the range or were still running in it", value: ({calls}) => calls,
  text: (row) => cell_text(row.calls, "count") + (began_before(row) ? " ·" : ""),
  note: (row) => began_before(row) ? "launched before the range; its GPU work runs in it" : null,
}

const QUANTITIES: (Column<OpRow> & {of: keyof Recorded})[] = [
  {
    of: "cpu_self_memory", key: "cpu_self_memory_bytes", label: "CPU mem", unit: "bytes",
    title: "CPU memory that the op itself allocated, minus what it freed", value: (row) => row.cpu_self_memory,
  },
  {
    of: "device_self_memory", key: "device_self_memory_bytes", label: "GPU mem", unit: "bytes",
    title: "GPU memory that the op itself allocated, minus what it freed", value: (row) => row.device_self_memory,
  },
  {of: "flops", key: "flops", label: "FLOPs", unit: "flop", title: "Floating point operations, estimated from the input shapes", value: ({flops}) => flops},
]

/** The name by which Python knows a column that sorts. */
function sort_key({key}: Order): string {
  return key.replace(UNIT, "")
}

const UNIT = /_(ns|bytes)$/

/** Returns the order in which the table opens: by Python's sort key, or by the nearest column where it has none of that name. */
function nearest_order(key: string, columns: Column<OpRow>[]): Order {
  const nearest = [key, key.replace("_memory", "_self_memory"), key.endsWith("total") ? "cpu_total" : "cpu_self"]
  const column = nearest.flatMap((name) => columns.filter((other) => sort_key({key: other.key, descending: true}) == name))[0]
  return {key: column.key, descending: column.unit != "text"}
}

export class OpTable extends Panel {
  static {
    this.prototype.default_view = OpTableView
  }
}
