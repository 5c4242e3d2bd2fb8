import type * as p from "@bokehjs/core/properties"

import {element, legend} from "./element"
import {FRAME_CSS, Panel, PanelView} from "./panel"

/** Red, green and blue (0 to 255), and how opaque it is (0 to 1). */
type Colour = [red: number, green: number, blue: number, alpha: number]

/** A colour behind the text of a cell, with its start and end as shares of the cell's width. */
type Stretch = [...Colour, start: number, end: number]

/** A table that is shown as it is, as `table_renderers.plain_table` makes it; `fills` are by column, one per row. */
export type PlainTable = {
  title: string
  notes: string[]
  columns: [label: string, is_text: boolean][]
  rows: string[][]
  fills: [column: number, fills: Stretch[][]][]
  legend: [text: string, colour: Colour][]
}

/** Tables of texts that always tell of the whole run. */
export class StaticTablesView extends PanelView {
  declare model: StaticTables

  protected readonly css = STATIC_TABLES_CSS

  protected build_content(): Node[] {
    return (this.model.tables as PlainTable[]).map(section)
  }
}

type StaticTablesProps = {tables: p.Property<unknown[]>}

export interface StaticTables extends p.AttrsOf<StaticTablesProps> {}

export class StaticTables extends Panel {
  static {
    this.prototype.default_view = StaticTablesView
    this.define<StaticTablesProps>(({List, Unknown}) => ({tables: [List(Unknown), []]}))
  }
}

function section(table: PlainTable): HTMLElement {
  const {title, notes} = table
  const colours = table.legend.map(([text, colour]): [string, string] => [rgba(colour), text])
  return element("section", {},
    element("h3", {}, title),
    element("div", {class: "frame"}, table_element(table)),
    ...colours.length == 0 ? [] : [legend(`Colours of: ${title}`, colours)],
    ...notes.map((note) => element("p", {class: "muted"}, note)))
}

function table_element({title, columns, rows, fills}: PlainTable): HTMLTableElement {
  const fills_of = new Map(fills)
  const headings = columns.map(([label, is_text]) => element("th", {scope: "col", class: is_text ? null : "number"}, label))
  const lines = rows.map((texts, row) => element("tr", {}, ...columns.map(([, is_text], at) => at == 0
    ? element("th", {scope: "row"}, element("code", {}, texts[at]))
    : cell(texts[at], is_text, fills_of.get(at)?.[row] ?? []))))
  return element("table", {"aria-label": title}, element("thead", {}, element("tr", {}, ...headings)), element("tbody", {}, ...lines))
}

function cell(text: string, is_text: boolean, fill: Stretch[]): HTMLTableCellElement {
  const is_bar = fill.some(([,,,, start, end]) => start > 0 || end < 1)
  const names = [is_text ? "" : "number", is_bar ? "bar" : ""].filter((name) => name != "")
  return element("td", {class: names.length == 0 ? null : names.join(" "), style: background(fill)}, text)
}

/** Returns the style of a fill. It is made of numbers alone: no text of a file is ever part of a style. */
function background(fill: Stretch[]): string | null {
  const stops = fill.map(([red, green, blue, alpha, start, end]) => {
    const [from, to] = [percent(start), percent(end)]
    return `transparent ${from}, ${rgba([red, green, blue, alpha])} ${from} ${to}, transparent ${to}`
  })
  return stops.length == 0 ? null : `background:linear-gradient(to right, ${stops.join(", ")})`
}

function rgba([red, green, blue, alpha]: Colour): string {
  return `rgba(${clamped(red, 255)}, ${clamped(green, 255)}, ${clamped(blue, 255)}, ${clamped(alpha, 1)})`
}

function percent(share: number): string {
  return `${(100 * clamped(share, 1)).toFixed(2)}%`
}

/** Returns a number from 0 to `most` whatever the value is. */
function clamped(value: unknown, most: number): number {
  return Math.max(0, Math.min(Number(value) || 0, most))
}

const STATIC_TABLES_CSS = `${FRAME_CSS}
:host { padding: 8px 0; border-top: 1px solid var(--line); }
section + section { margin-top: 14px; }
.frame { margin-top: 4px; }
table { border-collapse: separate; border-spacing: 0; }
th, td { padding: 2px 8px; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--line); }
thead :is(th, .number) { font-weight: 600; white-space: normal; vertical-align: bottom; }
tbody th { font-weight: 400; }
th:first-child { position: sticky; left: 0; z-index: 1; background: var(--bg); }
th.number, td.number { text-align: right; }
.bar { min-width: 260px; }
.bar.number { min-width: 80px; }
/* A long name wraps: it stays while the table scrolls, and has to leave room for that. */
th code { display: block; width: max-content; max-width: 320px; white-space: pre-wrap; overflow-wrap: anywhere; font: 12px var(--mono); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 12px; margin-top: 4px; color: var(--muted); }
`
