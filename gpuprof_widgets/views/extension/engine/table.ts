/** Tables without their look: what a column is, in which order the rows stand, how wide the columns are, and CSV. */

import type {Cell, Unit} from "./header"

/** A column of a table; `key` is the name of the same column in Python. */
export type Column<Row> = {
  key: string
  label: string
  unit: Unit
  value: (row: Row) => Cell
  /** How the value is written, where its unit does not say it. */
  text?: (row: Row) => string
  /** Which part of a whole the value is: written beside it, and the bar below it. */
  share?: (row: Row) => number
  /** What the column holds, where its label is not enough. */
  title?: string
  /** What has to be known about the value in one row, if anything has. */
  note?: (row: Row) => string | null
  /** Has a square of the row's colour. */
  has_swatch?: boolean
  /** Pixels of what else stands before the text. */
  before?: number
  /** Pixels that a text keeps at least, where there is little room. */
  least?: number
  is_code?: boolean
  /** Is in the copied text only. */
  is_hidden?: boolean
}

export type Order = {key: string, descending: boolean}

/** Pixels that the first text keeps, and others; and what these have at most in a table that scrolls. */
const LEAST_FIRST = 180
const LEAST_TEXT = 70
const MOST_TEXT = 200

/** Widths that fit into the room: all texts give way, as far as they are legible then; else the table scrolls. */
export function fitted<Row>(widths: number[], columns: Pick<Column<Row>, "unit" | "least">[], room: number): number[] {
  const least = widths.map((width, at) => {
    const {unit, least} = columns[at]
    return unit == "text" ? Math.min(width, least ?? (at == 0 ? LEAST_FIRST : LEAST_TEXT)) : width
  })
  const [needed, minimum] = [widths, least].map((all) => all.reduce((sum, each) => sum + each, 0))
  if (minimum > room) {
    return widths.map((width, at) => at == 0 || columns[at].unit != "text" ? least[at] : Math.min(width, MOST_TEXT))
  }
  const part = needed <= room ? 0 : (needed - room) / (needed - minimum)
  return widths.map((width, at) => Math.floor(width - part * (width - least[at])))
}

/** Names as people sort them: line 9 before line 10. */
const ALPHABET = new Intl.Collator("en", {numeric: true})

/** Rows by a column: changes by their size, those without a value last, equal ones as they stand. */
export function sorted<Row>(rows: Row[], {unit, value}: Column<Row>, descending: boolean): Row[] {
  const sign = descending ? -1 : 1
  const values = rows.map(value)
  return rows.map((_, at) => at).sort((a, b) => {
    const [left, right] = [values[a], values[b]]
    if (left == null || right == null) {
      return Number(left == null) - Number(right == null) || a - b
    }
    if (typeof left == "string") {
      return sign * ALPHABET.compare(left, String(right)) || a - b
    }
    const [one, other] = unit == "change" ? [Math.abs(left), Math.abs(Number(right))] : [left, Number(right)]
    return sign * (one - other) || a - b
  }).map((at) => rows[at])
}

/** How a cell begins that a spreadsheet may run, as in trace/writers/tables.py; and one that begins with an apostrophe of its own. */
const MARKED = /^['=+\-@\t\r\n＝＋－＠]/

/** RFC 4180; a text that a spreadsheet would take for a formula gets an apostrophe in front. */
export function to_csv(columns: readonly string[], rows: readonly (readonly (string | number)[])[]): string {
  return [columns, ...rows].map((row) => `${row.map(cell).join(",")}\r\n`).join("")
}

function cell(value: string | number): string {
  if (typeof value == "number") {
    return String(value)
  }
  const safe = MARKED.test(value) ? `'${value}` : value
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe
}
