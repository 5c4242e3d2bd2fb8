/** Tables without their look: columns, their widths, the order of the rows, and CSV. */

import type {Cell, Unit} from "./header"

/** A column of a table; `key` is the name of the same column in Python. */
export type Column<Row> = {
  key: string
  label: string
  unit: Unit
  value: (row: Row) => Cell
  /** The text of the value where its unit does not give it; null where it does. */
  text?: (row: Row) => string | null
  /** The value as a share of a whole: written beside it, and the length of the bar below it. */
  share?: (row: Row) => number
  /** Explains the column where its label is not enough. */
  title?: string
  /** A remark about the value in one row, if there is any. */
  note?: (row: Row) => string | null
  /** Has a square of the row's colour. */
  has_swatch?: boolean
  /** Pixels in front of the text. */
  indent?: number
  /** Pixels that a text keeps, where there is little room. */
  min_width?: number
  is_code?: boolean
  /** Is in the copied text only. */
  is_hidden?: boolean
}

export type Order = {key: string, descending: boolean}

/** Pixels of a letter, of a cell's padding, of the sign in a sorted heading, of numbers by their units, and of the share beside one. */
const LETTER = 7.5
const PADDING = 18
const SIGN = 8
const NUMBER: Partial<Record<Unit, number>> = {"flop": 104, "flop/s": 114, "bytes/s": 96, "change": 150, "moment": 116, "address": 140}
const OTHER_NUMBER = 84
const SHARE = 46
/** Pixels that a text has at most; that the first text keeps, and others; and what these have at most in a table that scrolls. */
const WIDEST = 640
const MIN_FIRST = 180
const MIN_TEXT = 70
const MOST_TEXT = 200

/** Returns the pixels that a column needs for its heading and the texts of some rows; numbers get a width by their unit. */
export function natural_width<Row>({label, unit, value, share, has_swatch, indent}: Column<Row>, rows: Row[]): number {
  if (unit != "text") {
    // A heading of several words takes two lines.
    const words = label.split(" ").map((word) => word.length)
    const heading = Math.max(...words, label.length / 2) * LETTER + PADDING + SIGN
    return Math.max((NUMBER[unit] ?? OTHER_NUMBER) + (share == null ? 0 : SHARE), heading)
  }
  const letters = rows.reduce((most, row) => Math.max(most, String(value(row) ?? "").length), 0)
  const needed = letters * LETTER + PADDING + (has_swatch ? PADDING : 0) + (indent ?? 0)
  return Math.max(heading_width(label), Math.min(needed, WIDEST))
}

function heading_width(label: string): number {
  return label.length * LETTER + PADDING + SIGN
}

/** Returns widths that fit into the room: texts shrink as long as they stay legible, beyond that the table scrolls. */
export function fitted<Row>(widths: number[], columns: Pick<Column<Row>, "label" | "unit" | "min_width">[], room: number): number[] {
  const least = widths.map((width, at) => {
    const {label, unit, min_width} = columns[at]
    const kept = at == 0 ? Math.min(min_width ?? MIN_FIRST, room / 2) : min_width ?? MIN_TEXT
    return unit == "text" ? Math.min(width, Math.max(kept, heading_width(label))) : width
  })
  const [needed, minimum] = [widths, least].map((all) => all.reduce((sum, each) => sum + each, 0))
  if (minimum > room) {
    return widths.map((width, at) => at == 0 || columns[at].unit != "text" ? least[at] : Math.min(width, MOST_TEXT))
  }
  const part = needed <= room ? 0 : (needed - room) / (needed - minimum)
  return widths.map((width, at) => Math.floor(width - part * (width - least[at])))
}

/** Compares names as people sort them: line 9 before line 10. */
export const compare_names = new Intl.Collator("en", {numeric: true}).compare

/** Returns rows sorted by a column. Changes sort by magnitude; rows without a value go last; ties keep their order. */
export function sorted<Row>(rows: Row[], {unit, value}: Column<Row>, descending: boolean): Row[] {
  const sign = descending ? -1 : 1
  const values = rows.map(value)
  return rows.map((_, at) => at).sort((a, b) => {
    const [left, right] = [values[a], values[b]]
    if (left == null || right == null) {
      return Number(left == null) - Number(right == null) || a - b
    }
    if (typeof left == "string") {
      return sign * compare_names(left, String(right)) || a - b
    }
    const [first, second] = unit == "change" ? [Math.abs(left), Math.abs(Number(right))] : [left, Number(right)]
    return sign * (first - second) || a - b
  }).map((at) => rows[at])
}

/** Beginnings of cells that a spreadsheet may run as a formula (trace/writers/tables.py), and an apostrophe of the cell's own. */
const MARKED = /^['=+\-@\t\r\n＝＋－＠]/

/** Returns CSV by RFC 4180; a text that a spreadsheet would take for a formula gets an apostrophe in front. */
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
