import {format_moment} from "./engine"
import type {Remark, TraceState} from "./report_state"
import {light_up} from "./selection"
import {pan_to} from "./zoom"

/** Returns the time of a note in words. */
export function remark_place({data: {header: {tick_ns}}}: TraceState, {start, end}: Remark): string {
  const from = format_moment(start, tick_ns)
  return start == end ? `at ${from}` : `from ${from} to ${format_moment(end, tick_ns)}`
}

/** Brushes the range of a note, or centres its moment. */
export function show_remark(trace: TraceState, {text, start, end}: Remark): void {
  if (start == end) {
    pan_to(trace, start - (trace.visible.end - trace.visible.start) / 2)
    const nothing = {row: -1, rows: new Int32Array(0), labels: new Set<number>()}
    trace.choose({source: "finding", ...nothing, ranges: [[start, end, -1]], key: `${text} ${start}`, text})
  } else {
    light_up(trace, {start, end, rows: [], events: 0}, text)
  }
}
