/** The definitions, taken literally, moment by moment: slow and plain. */

import type {Window} from "../columns"
import type {Store} from "../store"

export function is_open(store: Store, row: number, moment: number): boolean {
  return store.ts[row] <= moment && moment < store.end[row]
}

/** The latest-started of these rows that is open at a moment, -1 for none. */
export function innermost(store: Store, rows: readonly number[], moment: number): number {
  return rows.filter((row) => is_open(store, row, moment)).pop() ?? -1
}

/** Per row, the whole moments of the window at which it is the innermost one of the given rows. */
export function self_times(store: Store, rows: readonly number[], {start, end}: Window): Map<number, number> {
  const times = new Map<number, number>()
  for (let moment = start; moment < end; moment++) {
    const row = innermost(store, rows, moment)
    times.set(row, (times.get(row) ?? 0) + 1)
  }
  return times
}

/** Number of whole moments of the window at which any of the rows is open. */
export function covered(store: Store, rows: readonly number[], {start, end}: Window): number {
  let moments = 0
  for (let moment = start; moment < end; moment++) {
    moments += Number(innermost(store, rows, moment) >= 0)
  }
  return moments
}

export function rows_of_track(store: Store, track: number): number[] {
  return Array.from({length: store.rows}, (_, row) => row).filter((row) => store.track[row] == track)
}
