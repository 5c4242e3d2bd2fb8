import type {PanelData} from "./engine"
import type {TraceStore} from "./trace_store"
import {reveal, zoom_to} from "./viewport"

/** Of each row that is selected, the longest events of which one should be in view. */
const MOST_TRIED = 1_000

/** Selects rows of a panel: their events light up, and one of them is brought into view. */
export function select_rows(store: TraceStore, data: PanelData, panel_rows: number[], text: string): void {
  const rows = Int32Array.from(new Set(panel_rows.flatMap((row) => [...data.slices(row)]))).sort()
  const ranges = panel_rows.flatMap((row) => data.ranges(row)).sort((a, b) => a[0] - b[0])
  if (rows.length + ranges.length > 0) {
    const row_alone = rows.length == 1 && ranges.length == 0 ? rows[0] : -1
    const labels = new Set(Array.from(rows, (slice) => store.data.label[slice]))
    store.choose({source: "panel", row: row_alone, rows, ranges, key: rows_key(data, panel_rows), labels, text})
    bring_into_view(store, panel_rows.flatMap((row) => data.longest(row).slice(0, MOST_TRIED)))
  }
}

/** Where none of these ranges is in view, the view moves to the first of them. */
function bring_into_view(store: TraceStore, ranges: [number, number][]): void {
  const {start, end} = store.visible
  if (ranges.length > 0 && !ranges.some(([from, to]) => to >= start && from <= end)) {
    reveal(store, ...ranges[0])
  }
}

/** Zooms to one of a row's events: the longest is number 0. Returns how many there are. */
export function jump_to_event(store: TraceStore, data: PanelData, row: number, number: number): number {
  const ranges = data.longest(row)
  if (ranges.length > 0) {
    zoom_to(store, ...ranges[number % ranges.length], 0.5)
  }
  return ranges.length
}

/** The rows of a panel that hold what is selected, in whichever view that was done. */
export function selected_rows(store: TraceStore, data: PanelData): Set<number> {
  const {selection} = store
  if (selection == null) {
    return new Set()
  }
  if (selection.source == "panel" && selection.key.startsWith(`${data.name} `)) {
    return new Set(selection.key.slice(data.name.length + 1).split(",").map(Number))
  }
  const slices = selection.row >= 0 ? [selection.row] : selection.rows
  const holding = data.holding(slices)
  return new Set(holding.length > 0 ? holding : data.holding(caused_on_gpu(store, slices)))
}

/** The GPU work of some ops or launches. */
function caused_on_gpu({data}: TraceStore, rows: ArrayLike<number>): number[] {
  const causes = new Set(Array.from(rows))
  const caused = []
  for (let row = 0; row < data.rows; row++) {
    if (data.on_gpu[row] == 1 && (causes.has(data.op[row]) || causes.has(data.owner[row]))) {
      caused.push(row)
    }
  }
  return caused
}

export function rows_key(data: PanelData, rows: number[]): string {
  return `${data.name} ${rows.join(",")}`
}
