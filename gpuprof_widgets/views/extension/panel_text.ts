import {format_bandwidth, format_bytes, format_flops, format_ns, format_share} from "./engine"
import type {PanelColumn, PanelData, PanelValue} from "./engine"

const NONE = "–"
const MOST_TEXTS = 3

/** A value of a panel as people read it. */
export function panel_text(value: PanelValue, unit: PanelColumn["unit"]): string {
  if (value == null || typeof value == "string") {
    return value ?? NONE
  }
  switch (unit) {
    case "count": return Math.round(value).toLocaleString("en")
    case "ns": return value == 0 ? NONE : format_ns(value)
    case "bytes": return value == 0 ? NONE : format_bytes(value)
    case "flop": return value == 0 ? NONE : format_flops(value)
    case "bytes/s": return value == 0 ? NONE : format_bandwidth(value)
    case "flop/s": return value == 0 ? NONE : `${format_flops(value)}/s`
    case "share": return value == 0 ? NONE : format_share(value).replace("less than", "<")
    default: return number(value)
  }
}

/** Three significant digits, whole numbers whole. */
function number(value: number): string {
  const whole = Number.isInteger(value) || Math.abs(value) >= 1000
  return whole ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)))
}

/** What a row is called: its first text. */
export function row_name(data: PanelData, values: PanelValue[][], row: number): string {
  const at = data.columns.findIndex(({unit}) => unit == "text")
  return at < 0 ? data.title : String(values[at][row])
}

/** What tells a row from all others: its texts, as far as it has any. */
export function row_text(data: PanelData, values: PanelValue[][], row: number): string {
  const texts = data.columns.flatMap(({unit}, at) => unit == "text" && values[at][row] ? [String(values[at][row]).trim()] : [])
  return texts.length == 0 ? data.title : texts.slice(0, MOST_TEXTS).join(" · ")
}
