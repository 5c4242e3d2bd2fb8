import type {Store} from "./engine"
import type {Fact} from "./tooltip"
import type {TraceStore} from "./trace_store"

/** What is selected, said by the view in which it was selected; every view shows it in its own way. */
export type Selection = {
  source: "timeline" | "flame" | "table" | "lines" | "finding" | "memory" | "panel"
  /** The one selected event, -1 where all instances of a name or node are meant. */
  row: number
  /** Rows that the timeline highlights. */
  rows: Int32Array
  /** Ranges that the timeline highlights where there is no row: start and end (ns), and track, -1 for all tracks. */
  ranges?: [number, number, number][]
  /** Keeps two selections apart: the key of the table row, the flame node, the event or the finding. */
  key: string
  /** The names that are meant (indices into the header's labels). */
  labels: Set<number>
  /** What the detail line says. */
  text: string
  /** Its numbers in the brushed range. */
  facts?: () => Fact[]
}

export function same_selection(a: Selection | null, b: Selection | null): boolean {
  return a === b || (a != null && b != null && a.source == b.source && a.key == b.key && a.row == b.row)
}

/** Selects one event of the timeline; -1 selects nothing. */
export function select_event(store: TraceStore, row: number): void {
  const {data} = store
  store.choose(row < 0 ? null : {
    source: "timeline", row, rows: Int32Array.of(row), key: String(row), labels: new Set([data.label[row]]), text: data.name(row),
  })
}

/** The next or previous event on the same track and level; -1 at the end. */
export function step_aside(data: Store, row: number, direction: 1 | -1): number {
  if (row < 0) {
    return -1
  }
  for (let next = row + direction; next >= 0 && next < data.rows && data.track[next] == data.track[row]; next += direction) {
    if (data.depth[next] == data.depth[row]) {
      return next
    }
  }
  return -1
}

/** The event that contains this one (-1), or the first one that it contains (+1). */
export function step_level(data: Store, row: number, direction: 1 | -1): number {
  if (row < 0) {
    return -1
  }
  if (direction == -1) {
    return data.parent[row]
  }
  for (let next = row + 1; next < data.rows && data.track[next] == data.track[row] && data.ts[next] < data.end[row]; next++) {
    if (data.parent[next] == row) {
      return next
    }
  }
  return -1
}
