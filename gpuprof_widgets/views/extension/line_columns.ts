import {format_bytes, format_ns} from "./engine"
import type {LineRow} from "./engine"

/** A column of the lines view; each can be shown as heat behind the code. */
export type LineColumn = {
  key: Value
  text: string
  title: string
  format(value: number): string
  /** Whether each is a share of what the lines' values add up to; times in lines are shares of the range. */
  adds_up: boolean
  /** Shown where any line has a value. */
  optional: boolean
  width: number
  /** Left out where the page is narrow. */
  extra: boolean
}

type Value = "calls" | "wall" | "self" | "cpu_self" | "device" | "backward_cpu" | "backward_device" | "wait" | "allocated"

const TIME = {format: format_ns, adds_up: true, optional: true, width: 78, extra: false}

const COLUMNS: LineColumn[] = [
  {...TIME, key: "self", text: "Self", title: "Time in the line without the lines that ran within it", adds_up: false, optional: false},
  {...TIME, key: "wall", text: "Wall", title: "Time in which the line was running, with the lines within it", adds_up: false, optional: false},
  {...TIME, key: "cpu_self", text: "CPU ops", title: "CPU time of the ops and runtime calls in the line itself"},
  {...TIME, key: "device", text: "GPU", title: "GPU time of what the line itself launched"},
  {...TIME, key: "backward_device", text: "GPU backward", width: 118, title: "GPU time of the backward ops whose forward op ran in the line"},
  {...TIME, key: "backward_cpu", text: "CPU backward", width: 118, title: "CPU time of the backward ops whose forward op ran in the line"},
  {...TIME, key: "wait", text: "GPU wait", title: "Time in which the line stood still until the GPU was done"},
  {...TIME, key: "allocated", text: "Allocated", title: "Bytes that the line itself allocated, releases not subtracted", format: format_bytes, width: 84, extra: true},
  {...TIME, key: "calls", text: "Calls", width: 60, title: "How often the line began within the range", format: (value) => value.toLocaleString("en"), optional: false},
]

/** The columns that have anything to say in the whole record; of the backward pass the GPU's, if it has any. */
export function columns_of(rows: LineRow[]): LineColumn[] {
  const has = (key: Value): boolean => rows.some((row) => row[key] != 0)
  return COLUMNS.filter(({key, optional}) => (!optional || has(key)) && !(key == "backward_cpu" && has("backward_device")))
}
