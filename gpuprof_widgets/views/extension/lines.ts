import {OKABE_ITO} from "./categories"
import {css, mix, with_contrast} from "./colour"
import {button, element} from "./element"
import {
  cell_text, format_count, line_instances, line_of_row, sign_of, why_inexact,
  type Column, type LineRow, type LineValue, type Store, type Window,
} from "./engine"
import {Panel} from "./panel"
import {marked_rows} from "./selection"
import {TableView} from "./table"
import {TABLE_CSS} from "./table_look"

const LEGIBLE = 7
/** Pixels of the line numbers. */
const GUTTER = 40
/** Pixels that line numbers and code keep at least. */
const MIN_CODE = 320
/** Pixels of a time with a sign in front, in any range, and of the share beside it. */
const SIGNED = 88
const SHARE = 52
/** Number of selected events whose lines are looked up. */
const MOST_LOOKED_UP = 1000

/** A line of a cell, with its numbers if any statement of it was recorded; or a stretch of lines that is left out. */
type Row = {text: TextLine, cell: number, numbers: LineRow | null}

/** A column that can be shown as bars behind the code. */
type NumberColumn = Column<Row> & {
  of: LineValue
  /** Whether each is a share of what the lines' values add up to; times in lines are shares of the range. */
  adds_up: boolean
}

/** The source of the recorded cells: numbers beside each line, and one of them as heat behind the code. */
export class LinesView extends TableView<Row> {
  declare model: Lines

  protected override readonly css = TABLE_CSS + LINES_CSS
  protected override readonly first_rows = Infinity
  private sources: CellSource[] | null = null
  private whole_numbers: LineRow[]
  private numbers: NumberColumn[]
  private heat: NumberColumn
  /** The numbers of all lines in the range. */
  private recorded: LineRow[]
  private longest_bar = 0
  private sum = 0

  override connect_signals(): void {
    super.connect_signals()
    const {store} = this
    this.connect(store.selection_changed, () => this.scroll_to_chosen())
    this.connect(store.theme.changed, () => this.recolour())
  }

  protected get title(): string {
    return "Lines"
  }

  protected override build_content(): Node[] {
    this.numbers = this.number_columns()
    this.heat = this.numbers[0]
    const content = super.build_content()
    this.recolour()
    return content
  }

  private get cells(): CellSource[] {
    return this.sources ??= cell_sources(this.store.data)
  }

  protected override tools(): Node[] {
    return [element("span", {class: "muted"}, "Click a heading to choose what the bars show.")]
  }

  protected list_columns(): Column<Row>[] {
    return [
      {key: "cell", label: "Cell", unit: "text", value: ({cell}) => this.cells[cell].name, is_hidden: true},
      {key: "line", label: "Line", unit: "count", value: ({text}) => text.kind == "line" ? text.number : null, is_hidden: true},
      {
        key: "code", label: "Code", unit: "text", is_code: true, indent: GUTTER, min_width: MIN_CODE,
        value: ({text}) => text.kind == "line" ? text.text : null,
      },
      ...this.numbers.map((column) => column == this.heat && column.key != "calls" ? this.with_share(column) : column),
      {key: "complete", label: "Complete", unit: "text", value: ({numbers}) => numbers == null ? null : is_exact(numbers) ? "yes" : "no", is_hidden: true},
    ]
  }

  private with_share(column: NumberColumn): NumberColumn {
    return {...column, share: this.share_getter(column), min_width: column.min_width == null ? undefined : column.min_width + SHARE}
  }

  /** The share that the bars behind the code show. */
  private share_getter({of}: NumberColumn): (row: Row) => number {
    return ({numbers}) => this.sum == 0 ? 0 : numbers![of] / this.sum
  }

  /** The columns that have anything to say in the whole record; of the backward pass the GPU's, if it has any. */
  private number_columns(): NumberColumn[] {
    const has = (of: LineValue): boolean => this.whole_numbers.some((row) => row[of] != 0)
    const shown = QUANTITIES.filter(({of, optional}) => (!optional || has(of)) && !(of == "backward_cpu" && has("backward_device")))
    return shown.map(({of, adds_up, ...column}) => ({
      unit: "ns", ...column, of, adds_up: adds_up ?? true, min_width: this.whole_numbers.every(is_exact) ? undefined : SIGNED,
      value: ({numbers}) => numbers?.[of] ?? null,
      text: ({numbers}) => {
        if (numbers == null) {
          return ""
        }
        // A line that was cut may have run in a range in which none of its runs is recorded.
        const is_known = numbers[of] != 0 || of == "calls" && numbers.is_cut
        const text = cell_text(is_known ? numbers[of] : null, column.unit ?? "ns")
        const sign = is_known ? sign_of(numbers, of) : ""
        return sign == "" ? text : `${sign}\u00a0${text}`
      },
      note: ({numbers}) => numbers == null || sign_of(numbers, of) == "" ? null : why_inexact(this.store.data.header.lines!, numbers),
    }))
  }

  protected async list_rows(range: Window | null): Promise<Row[]> {
    const {store} = this
    const numbers = await store.ask("lines", {window: range ?? store.data.whole}, this)
    this.whole_numbers = range == null ? numbers : this.whole_numbers
    return this.cells.flatMap(({lines}, cell) => lines.map((text): Row =>
      ({text, cell, numbers: text.kind == "line" && text.index >= 0 ? numbers[text.index] : null})))
  }

  protected override add_up(): void {
    super.add_up()
    const {of, adds_up} = this.heat
    this.recorded = this.rows.flatMap(({numbers}) => numbers ?? [])
    this.longest_bar = this.recorded.reduce((most, row) => Math.max(most, row[of]), 0)
    this.sum = adds_up ? this.recorded.reduce((sum, row) => sum + row[of], 0) : this.span()
  }

  private span(): number {
    const {data, range} = this.store
    return data.ns(range.end - range.start)
  }

  protected summary(count: number): string {
    const ran = this.recorded.filter(({wall, calls}) => wall > 0 || calls > 0).length
    return `${this.is_filtered ? `${format_count(count, "line")} found · ` : ""}${format_count(ran, "line")} ran · ${this.where}`
  }

  protected override sorting(): null {
    return null
  }

  /** The lines stay where the source has them: a heading chooses the bars. */
  protected override heading(column: Column<Row>): HTMLElement {
    const {key, label, title} = column
    const number = this.numbers.find((other) => other.key == key)
    if (number == null) {
      return element("span", {}, label)
    }
    const pressed = number == this.heat
    const words = `${title}. ${pressed ? "Shown" : "Show it"} as bars behind the code`
    return button(label, {title: words, "aria-pressed": String(pressed), "data-head": key}, () => {
      this.heat = number
      this.change_columns()
    })
  }

  protected override bodies(rows: Row[]): HTMLElement[] {
    if (rows.length == 0) {
      return super.bodies(rows)
    }
    const columns = this.shown_columns.length
    return this.cells.flatMap(({name}, at) => {
      const heading = element("tr", {class: "cell"}, element("th", {colspan: columns, scope: "rowgroup"}, element("span", {class: "stays"}, name)))
      const lines = rows.filter(({cell}) => cell == at).map((row) => this.row_element(row))
      return lines.length == 0 ? [] : [element("tbody", {"aria-label": name}, ...this.cells.length > 1 ? [heading] : [], ...lines)]
    })
  }

  protected override row_element(row: Row): HTMLTableRowElement {
    const {text, numbers} = row
    if (text.kind == "gap") {
      const words = `⋯ ${format_count(text.lines, "line")} without recorded statements`
      return element("tr", {class: "gap"}, element("td", {colspan: this.shown_columns.length, class: "muted"}, element("span", {class: "stays"}, words)))
    }
    const line = super.row_element(row)
    line.classList.toggle("silent", numbers == null || numbers.wall == 0 && numbers.calls == 0)
    return line
  }

  protected override cell(column: Column<Row>, row: Row): HTMLElement {
    const {text, numbers} = row
    if (column.key != "code" || text.kind == "gap") {
      return super.cell(column, row)
    }
    const heat = numbers == null ? [] : [element("span", {class: "heat", style: `width:${(100 * this.heat_of(numbers)).toFixed(2)}%`})]
    return element("td", {class: "code", title: text.text.trim()},
      element("span", {class: "at muted"}, String(text.number)), element("span", {class: "source"}, ...heat, element("span", {class: "text"}, text.text)))
  }

  private heat_of(numbers: LineRow): number {
    return this.longest_bar == 0 ? 0 : numbers[this.heat.of] / this.longest_bar
  }

  protected override is_listed({text}: Row): boolean {
    return text.kind == "line" || !this.is_filtered
  }

  protected override is_selectable({numbers}: Row): boolean {
    return numbers != null
  }

  protected override is_copied({numbers}: Row): boolean {
    return numbers != null
  }

  /** The heat's colour is as strong as the page's text allows. */
  private recolour(): void {
    const {background, foreground} = this.store.theme.palette
    this.table.style.setProperty("--heat", css(with_contrast(mix(OKABE_ITO.orange, background, 0.4), background, foreground, LEGIBLE)))
  }

  protected key_of({text}: Row): string {
    return text.kind == "line" ? String(text.index) : ""
  }

  protected choose(row: Row): void {
    const {store} = this
    const key = this.key_of(row)
    if (store.selection?.source == "lines" && store.selection.key == key) {
      store.choose(null)
      return
    }
    const {line, code} = row.numbers!
    const rows = line_instances(store.data, Number(key))
    const labels = new Set(Array.from(rows, (slice) => store.data.label[slice]))
    store.choose({source: "lines", row: -1, rows, key, labels, text: `Line ${line}: ${code}`})
  }

  protected chosen_keys(): Set<string> {
    const {selection, data} = this.store
    if (selection == null) {
      return new Set()
    }
    if (selection.source == "lines") {
      return new Set([selection.key])
    }
    const rows = marked_rows(selection).subarray(0, MOST_LOOKED_UP)
    const lines = new Set(Array.from(rows, (row) => line_of_row(data, row)))
    return new Set(lines.size == 1 ? [...lines].filter((line) => line >= 0).map(String) : [])
  }

  /** Brings the line of a selection made elsewhere into view: scrolls the table itself, never the page. */
  private scroll_to_chosen(): void {
    const {frame} = this
    const line = this.table.querySelector<HTMLElement>("tr[aria-selected=true]")
    if (line == null || this.store.selection?.source == "lines") {
      return
    }
    const head = this.table.tHead?.offsetHeight ?? 0
    if (line.offsetTop - head < frame.scrollTop) {
      frame.scrollTop = line.offsetTop - head
    } else if (line.offsetTop + line.offsetHeight > frame.scrollTop + frame.clientHeight) {
      frame.scrollTop = line.offsetTop + line.offsetHeight - frame.clientHeight
    }
  }
}

/** Whether all numbers of a line are of all its runs and of no others. */
function is_exact({is_cut, others}: LineRow): boolean {
  return !is_cut && others.length == 0
}

const QUANTITIES: (Pick<NumberColumn, "key" | "of" | "label" | "title"> & {unit?: "bytes" | "count", adds_up?: boolean, optional: boolean})[] = [
  {of: "self", key: "self_ns", label: "Self", title: "Time in the line without the lines that ran within it", adds_up: false, optional: false},
  {of: "wall", key: "wall_ns", label: "Wall", title: "Time in the line with the lines that ran within it", adds_up: false, optional: false},
  {of: "cpu_self", key: "cpu_self_ns", label: "CPU ops", title: "CPU time of the ops and runtime calls in the line itself", optional: true},
  {of: "device", key: "device_ns", label: "GPU", title: "GPU time of what the line itself launched", optional: true},
  {of: "backward_device", key: "backward_device_ns", label: "GPU backward", title: "GPU time of the backward ops whose forward op ran in the line", optional: true},
  {of: "backward_cpu", key: "backward_cpu_ns", label: "CPU backward", title: "CPU time of the backward ops whose forward op ran in the line", optional: true},
  {of: "wait", key: "wait_ns", label: "GPU wait", title: "Time in which the line waited for the GPU", optional: true},
  {
    of: "allocated", key: "allocated_bytes", label: "Allocated", unit: "bytes",
    title: "Bytes that the line itself allocated; freed bytes are not subtracted", optional: true,
  },
  {
    of: "freed", key: "freed_bytes", label: "Freed", unit: "bytes",
    title: "Bytes that were freed while the line itself ran, whichever line allocated them", optional: true,
  },
  {of: "calls", key: "calls", label: "Calls", unit: "count", title: "How often the line began within the range", optional: false},
]

export class Lines extends Panel {
  static {
    this.prototype.default_view = LinesView
  }
}

/** A line of the view, with the index of its row of numbers (-1 for none), or a gap. */
type TextLine = {kind: "line", number: number, text: string, index: number} | {kind: "gap", lines: number}

type CellSource = {name: string, lines: TextLine[]}

/** Number of lines without a recorded statement that are shown next to one with it, where there are many. */
const AROUND = 3

/** The text of every recorded cell; where it is not known, of the lines that ran. */
function cell_sources(store: Store): CellSource[] {
  const table = store.header.lines
  return (table?.cells ?? []).map(({name, first, text}, cell) => {
    const index_of = new Map(table!.lines.flatMap(([of, number], index) => of == cell ? [[number, index]] : []))
    const code_of = new Map(table!.lines.flatMap(([of, number, code]) => of == cell ? [[number, code]] : []))
    const numbers = text.length > 0 ? text.map((_, i) => first + i) : [...index_of.keys()]
    const lines = numbers.map((number): TextLine & {kind: "line"} =>
      ({kind: "line", number, text: text[number - first] ?? code_of.get(number) ?? "", index: index_of.get(number) ?? -1}))
    return {name, lines: without_long_gaps(lines)}
  })
}

function without_long_gaps(lines: (TextLine & {kind: "line"})[]): TextLine[] {
  const shown: TextLine[] = []
  let silent: typeof lines = []
  const close = (is_last: boolean): void => {
    const before = shown.length == 0 ? 0 : AROUND
    const after = is_last ? 0 : AROUND
    if (silent.length <= before + after + AROUND) {
      shown.push(...silent)
    } else {
      const left_out = silent.length - before - after
      shown.push(...silent.slice(0, before), {kind: "gap", lines: left_out}, ...silent.slice(before + left_out))
    }
    silent = []
  }
  for (const line of lines) {
    if (line.index < 0) {
      silent.push(line)
    } else {
      close(false)
      shown.push(line)
    }
  }
  close(true)
  return shown
}

const LINES_CSS = `
.frame { position: relative; overflow: auto; max-height: 430px; border-bottom: 1px solid var(--line); }
th, td { border-bottom: 0; padding: 0 8px; height: 20px; line-height: 20px; white-space: nowrap; }
thead th { position: sticky; top: 0; z-index: 2; padding: 0 2px; background: var(--bg); border-bottom: 1px solid var(--line); height: 26px; vertical-align: middle; }
thead th:first-child { z-index: 3; padding-left: 8px; }
th button[aria-pressed=true] { border-radius: 0; box-shadow: inset 0 -3px 0 var(--accent); }
.cell th { background: var(--band); }
tr[data-key] { scroll-margin-top: 28px; }
td.code { line-height: 20px; }
.at { display: inline-block; width: 32px; margin-right: 8px; text-align: right; font-variant-numeric: tabular-nums; user-select: none; }
.stays { position: sticky; left: 8px; }
.source { position: absolute; inset: 0 4px 0 44px; overflow: hidden; text-overflow: ellipsis; }
.text { position: relative; display: block; margin-left: 4px; overflow: hidden; text-overflow: ellipsis; white-space: pre; tab-size: 4; }
.heat { position: absolute; left: 0; top: 1px; bottom: 1px; min-width: 0; border-radius: 2px; background: var(--heat); }
.silent .text { color: var(--muted); }
/* The heat shows the shares. */
td.bar { background: none; }
`
