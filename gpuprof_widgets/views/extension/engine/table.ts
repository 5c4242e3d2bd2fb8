/** Tables without their look: columns, their widths, the order of the rows, and CSV. */

import {cell_text, NO_VALUE} from "./format"
import type {Cell, Unit} from "./header"

/** A column of a table; `key` is the name of the same column in Python. */
export type Column<Row> = {
  key: string
  label: string
  unit: Unit
  value: (row: Row) => Cell
  /** The text of the value where its unit does not give it; null where it does. */
  text?: (row: Row) => string | null
  /** The value as a share of a whole: written beside it, and the length of the bar behind it. */
  share?: (row: Row) => number
  /** Explains the column where its label is not enough. */
  title?: string
  /** A remark about the value in one row, if there is any. */
  note?: (row: Row) => string | null
  /** Has a square of the row's colour. */
  has_swatch?: boolean
  /** Pixels in front of the text. */
  indent?: number
  /** Pixels that a text has at least. */
  min_width?: number
  is_code?: boolean
  /** Is in the copied text only. */
  is_hidden?: boolean
}

export type Order = {key: string, descending: boolean}

/** Returns the pixels of a text in the font of a heading, of the page or of code. */
export type Measure = (text: string, font: "heading" | "text" | "code") => number

/** Pixels that a column needs for everything, and those that it keeps where there is little room; its part of what is left. */
export type Width = {natural: number, least: number, weight: number}

/** Pixels: a cell's padding and its border; the square of a colour; the sign in a sorted heading; between a number and its share or bar. */
const PADDING = 18
const SWATCH = 18
const SIGN = 12
const GAP = 6
/** Pixels of the bar beside a change. */
export const CHANGE_BAR = 64
/** The widest share beside a number. */
export const WIDEST_SHARE = "<0.1\u00a0%"
/** Number of the longest texts of a column that are measured. */
const MEASURED = 12
/** Characters that the first column keeps, and other texts. */
const FIRST = 30
const OTHER = 14
/** The first column gets this much more of the room than any other. */
const FIRST_WEIGHT = 2

/** Returns the widths of columns by their headings and their cells in some rows, in any part of the time range. */
export function widths_of<Row>(columns: Column<Row>[], rows: Row[], measure: Measure): Width[] {
  return columns.map((column, at) => {
    const {unit, min_width} = column
    const [one_line, two_lines] = heading_widths(column.label, measure)
    const needed = unit == "text" ? text_width(column, rows, measure) : number_width(column, rows, measure)
    const cells = Math.ceil(Math.max(needed, min_width ?? 0))
    const kept = unit == "text" ? min_width ?? measure("0".repeat(at == 0 ? FIRST : OTHER), "text") + PADDING : cells
    const least = Math.ceil(Math.max(Math.min(cells, kept), two_lines))
    return {natural: Math.max(cells, one_line), least, weight: at == 0 ? FIRST_WEIGHT : 1}
  })
}

function text_width<Row>(column: Column<Row>, rows: Row[], measure: Measure): number {
  const {has_swatch, indent, is_code} = column
  const texts = rows.map((row) => column_text(column, row))
  return widest(texts, (text) => measure(text, is_code ? "code" : "text")) + PADDING + (has_swatch ? SWATCH : 0) + (indent ?? 0)
}

function number_width<Row>(column: Column<Row>, rows: Row[], measure: Measure): number {
  const {unit, share} = column
  const texts = [...rows.map((row) => column_text(column, row)), ...other_numbers(column, rows)]
  const beside = share != null ? measure(WIDEST_SHARE, "text") + GAP : unit == "change" ? CHANGE_BAR + GAP : 0
  // All digits are as wide as a zero.
  return widest(texts, (text) => measure(text.replace(/\d/g, "0"), "text")) + beside + PADDING
}

/** Returns the text of a cell, without the share beside it. */
export function column_text<Row>({value, unit, text}: Column<Row>, row: Row): string {
  return text?.(row) ?? cell_text(value(row), unit)
}

/** Whether no row has anything in a column. */
export function is_empty<Row>(column: Column<Row>, rows: Row[]): boolean {
  return rows.every((row) => ["", NO_VALUE].includes(column_text(column, row)))
}

function widest(texts: string[], width: (text: string) => number): number {
  const longest = [...new Set(texts)].sort((a, b) => b.length - a.length).slice(0, MEASURED)
  return longest.reduce((most, text) => Math.max(most, width(text)), 0)
}

/** In a part of the range a number may be another, and its text wider: 50.0 ms of 5 s, all of 5 %. */
function other_numbers<Row>({value, unit}: Column<Row>, rows: Row[]): string[] {
  if (unit == "share") {
    return [cell_text(1, unit), cell_text(1e-9, unit)]
  }
  const largest = rows.reduce((most, row) => Math.max(most, Math.abs(Number(value(row) ?? 0))), 0)
  return SCALED.includes(unit) ? [1, 1e3, 1e6, 1e9, 1e12].filter((size) => size <= largest).map((size) => cell_text(88.8 * size, unit)) : []
}

const SCALED: Unit[] = ["ns", "change", "bytes", "bytes/s", "flop", "flop/s"]

/** Returns the pixels of a heading on one line, and on two where it has several words. */
function heading_widths(label: string, measure: Measure): [number, number] {
  const words = label.split(" ")
  const breaks = words.map((_, at) => [words.slice(0, at), words.slice(at)])
  const widths = breaks.map((lines) => Math.max(...lines.map((line) => measure(line.join(" "), "heading"))))
  return [widths[0], Math.min(...widths)].map((width) => Math.ceil(width + PADDING + SIGN)) as [number, number]
}

/**
 * Returns widths that fit into the room: columns share what is left by need, the first of them before others. Where some would
 * get too little, all get what they keep, and the table scrolls.
 */
export function fitted(widths: Width[], room: number): number[] {
  const sum = (all: number[]): number => all.reduce((total, each) => total + each, 0)
  const at_level = (level: number): number[] =>
    widths.map(({natural, least, weight}) => Math.floor(Math.min(natural, Math.max(least, level * weight))))
  if (sum(at_level(room)) <= room) {
    return at_level(room)
  }
  if (sum(at_level(0)) > room) {
    // The first column stays where it is while the others scroll beside it.
    return at_level(0).map((width, at) => at == 0 ? Math.floor(Math.min(width, room / 2)) : width)
  }
  let [low, high] = [0, room]
  while (high - low > 0.1) {
    const level = (low + high) / 2
    ;[low, high] = sum(at_level(level)) <= room ? [level, high] : [low, level]
  }
  return at_level(low)
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
