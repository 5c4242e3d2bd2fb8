/** The look of tables: cells, the bars behind and beside their numbers, and colours that leave the text legible. */

import {GREW, SHRANK} from "./categories"
import {css, mix, outline_of, parse_colour, with_contrast} from "./colour"
import {element} from "./element"
import {CHANGE_BAR, column_text, format_share, type Cell, type Column, type Unit} from "./engine"
import {FRAME_CSS} from "./panel"
import type {Palette} from "./theme"

/** Share of the background in the fill of a bar behind text, at least; and the contrast that the text keeps. */
const PALE = 0.4
const LEGIBLE = 4.6

/** A cell of a column; `most`: the largest change in it. */
export function cell_element<Row>(column: Column<Row>, row: Row, ignores_range: boolean, most: number): HTMLElement {
  const {key, unit} = column
  const value = column.value(row)
  const words = column_text(column, row)
  const note = column.note?.(row) ?? null
  if (unit == "text") {
    const swatch = column.has_swatch ? [element("span", {class: "swatch"})] : []
    return element("td", {class: column_classes(column, false), title: note ?? (words == "" ? null : words)}, ...swatch, words)
  }
  const share = value == null || value == 0 ? null : column.share?.(row) ?? null
  const share_beside = share == null ? [] : [" ", element("span", {class: "share muted"}, format_share(share).replace("less than ", "<"))]
  const style = bar_style(unit, value, share, most)
  const names = [column_classes(column, ignores_range), unit == "change" ? "change" : style == null ? null : "bar"]
  return element("td", {class: names.filter((name) => name != null).join(" "), title: note, "data-column": key, "data-value": value, style},
    words, ...share_beside)
}

/** The classes of the heading and the cells of a column. */
export function column_classes({unit, is_code}: {unit: Unit, is_code?: boolean}, ignores_range: boolean): string | null {
  const names = [unit == "text" ? "" : "number", is_code ? "code" : "", ignores_range ? "whole" : ""].filter((name) => name != "")
  return names.length == 0 ? null : names.join(" ")
}

/** Returns the bar behind a number, as long as its share; the bar beside a change begins in the middle. */
function bar_style(unit: Unit, value: Cell, share: number | null, most: number): string | null {
  if (typeof value != "number") {
    return null
  }
  if (unit == "change") {
    const part = most == 0 ? 0 : value / most * 50
    const [from, to] = [Math.min(50, 50 + part), Math.max(50, 50 + part)]
    return part == 0 ? null : `--from:${from}%;--to:${to}%;--change:var(${part < 0 ? "--shrank" : "--grew"})`
  }
  const part = unit == "share" ? value : share ?? 0
  return part > 0 ? `--to:max(1px,${100 * Math.min(1, part)}%)` : null
}

/** Gives the bars of a table their colours on the page's background. */
export function colour_bars(table: HTMLElement, palette: Palette): void {
  table.style.setProperty("--soft", soft(css(palette.accent), palette))
  for (const [name, colour] of [["--grew", GREW], ["--shrank", SHRANK]] as const) {
    table.style.setProperty(name, css(outline_of(colour, palette.background) ?? colour))
  }
}

/** The style of a row with a colour of its own. */
export function row_style(colour: string, palette: Palette): string {
  return `--row:${colour};--soft:${soft(colour, palette)}`
}

/** Returns the fill of a bar behind a text: as strong as the text allows. */
function soft(colour: string, {background, muted}: Palette): string {
  return css(with_contrast(mix(parse_colour(colour).rgb, background, PALE), background, muted, LEGIBLE))
}

export const TABLE_CSS = `${FRAME_CSS}
:host { padding: 8px 0; border-top: 1px solid var(--line); }
.frame { margin-top: 6px; }
table { border-collapse: separate; border-spacing: 0; table-layout: fixed; }
th, td { padding: 2px 8px; text-align: left; border-bottom: 1px solid var(--line); height: 24px; }
th { padding: 0 2px; font-weight: 600; vertical-align: bottom; }
th, th button { white-space: normal; }
th button { border: 0; background: none; width: 100%; text-align: inherit; font-weight: 600; padding: 2px 6px; line-height: 1.25; }
th.number button { text-align: right; }
td { position: relative; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
td.nothing { overflow: visible; }
td.number { text-align: right; }
td.code { font: 12px var(--mono); }
td.whole, th.whole button { color: var(--muted); }
th.whole button { text-decoration: underline dotted; text-underline-offset: 3px; }
th:first-child, td:first-child { position: sticky; left: 0; z-index: 1; background: var(--bg); }
td { user-select: text; }
tr[data-key] { cursor: pointer; }
tr[data-key]:hover, tr[data-key]:hover td:first-child { background: var(--band); }
tr[aria-selected=true], tr[aria-selected=true] td:first-child { background: var(--band); }
tr[aria-selected=true] td:first-child { box-shadow: inset 3px 0 0 var(--accent); }
tr:focus-visible { outline: 2px solid var(--accent); outline-offset: -2px; }
/* The first cell stands above the outline of its row. */
tr:focus-visible td:first-child { box-shadow: inset 3px 2px 0 var(--accent), inset 0 -2px 0 var(--accent); }
td .swatch { background: var(--row); }
/* Bars begin at the left of their column, those of changes in the middle of theirs: so they compare. */
td.bar { background: linear-gradient(var(--soft), var(--soft)) left / var(--to) calc(100% - 4px) no-repeat; }
td.change {
  --from: 50%; --to: 50%;
  background-image: linear-gradient(var(--edge), var(--edge)),
    linear-gradient(to right, transparent var(--from), var(--change, transparent) var(--from) var(--to), transparent var(--to));
  background-size: 1px 100%, ${CHANGE_BAR}px calc(100% - 8px);
  background-position: ${8 + CHANGE_BAR / 2}px 50%, 8px 50%;
  background-repeat: no-repeat;
}
.share { display: inline-block; min-width: var(--share); }
.below, .more { margin-top: 6px; }
.below:empty { display: none; }
input[type=checkbox] { height: auto; vertical-align: -2px; accent-color: var(--accent); }
@media (forced-colors: active) {
  /* The system draws neither shadows nor gradients of ours, unless its colours are taken by name. */
  tr[data-key]:is([aria-selected=true], :focus-visible) td:first-child {
    forced-color-adjust: none; color: CanvasText;
    --ink: linear-gradient(Highlight, Highlight);
    background: var(--ink) top / 100% 2px no-repeat, var(--ink) bottom / 100% 2px no-repeat, var(--ink) left / 2px 100% no-repeat, Canvas;
  }
}
`
