/** Steps through selected slices, of one trace or of several on one clock, in the order of time. */

import type {Store} from "./store"

/** The selected rows of a trace. */
export type Selected = {store: Store, rows: Int32Array}

/** One of the selected rows; `side`: the index of its trace. */
export type Instance = {side: number, row: number}

/** Returns the next one in time (1) or the previous one (-1); at the end it goes on from the other end. Null where there is none. */
export function next_instance(selected: Selected[], current: Instance, direction: 1 | -1): Instance | null {
  const after = order_from(selected, current)
  return first_of(selected, direction, (side, row) => direction * after(side, row) > 0) ?? first_of(selected, direction, () => true)
}

/** Returns the first one that starts at a time (ns) or after it, else the first one of all; null where there is none. */
export function instance_from(selected: Selected[], time: number): Instance | null {
  const starts = (side: number, row: number): boolean => start_of(selected[side].store, row) >= time
  return first_of(selected, 1, starts) ?? first_of(selected, 1, () => true)
}

/** Returns the place of one in the order of time, from 1 on. */
export function place_of_instance(selected: Selected[], current: Instance): number {
  const after = order_from(selected, current)
  let place = 1
  selected.forEach(({rows}, side) => {
    for (const row of rows) {
      place += Number(after(side, row) < 0)
    }
  })
  return place
}

/** Returns the earliest (1) or the latest (-1) of the wanted ones. */
function first_of(selected: Selected[], direction: 1 | -1, is_wanted: (side: number, row: number) => boolean): Instance | null {
  let first: Instance | null = null
  let order: ((side: number, row: number) => number) | null = null
  selected.forEach(({rows}, side) => {
    for (const row of rows) {
      if (is_wanted(side, row) && (order == null || direction * order(side, row) < 0)) {
        first = {side, row}
        order = order_from(selected, first)
      }
    }
  })
  return first
}

/** Compares rows with one by start, then by trace, then by number: below 0 those before it, above 0 those after it. */
function order_from(selected: Selected[], {side, row}: Instance): (side: number, row: number) => number {
  const start = start_of(selected[side].store, row)
  return (other_side, other) => start_of(selected[other_side].store, other) - start || other_side - side || other - row
}

function start_of(store: Store, row: number): number {
  return store.ns(store.ts[row])
}
