import type {Store} from "./engine"
import type {TraceStore} from "./trace_store"

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
