/** Which slice is inside which on one track, and the self time of each. */

import type {Store} from "./store"

/**
 * Returns the parent of every slice: the latest-started slice that is still open (`end > ts`) when this one
 * starts, -1 for none; it need not outlast its child. Slices are sorted by start.
 */
export function nest(ts: Float64Array, end: Float64Array): Int32Array {
  const parent = new Int32Array(ts.length)
  const open: number[] = []
  for (let i = 0; i < ts.length; i++) {
    // A slice that has ended is over for all later ones too: it may leave the stack for good.
    while (open.length > 0 && end[open[open.length - 1]] <= ts[i]) {
      open.pop()
    }
    parent[i] = open.length > 0 ? open[open.length - 1] : -1
    open.push(i)
  }
  return parent
}

/** Returns the values of some rows. */
export function gather(values: Float64Array, rows: ArrayLike<number>): Float64Array {
  const gathered = new Float64Array(rows.length)
  for (let i = 0; i < gathered.length; i++) {
    gathered[i] = values[rows[i]]
  }
  return gathered
}

/** Returns each slice's number of ancestors; a parent stands before its children. */
export function depths(parent: Int32Array): Uint16Array {
  const depth = new Uint16Array(parent.length)
  for (let row = 0; row < parent.length; row++) {
    depth[row] = parent[row] < 0 ? 0 : depth[parent[row]] + 1
  }
  return depth
}

/** Returns the latest end of each slice and of everything below it (a child may outlast its parent). */
export function subtree_ends(end: Float64Array, parent: Int32Array): Float64Array {
  const latest = end.slice()
  for (let row = parent.length - 1; row >= 0; row--) {
    const above = parent[row]
    if (above >= 0 && latest[row] > latest[above]) {
      latest[above] = latest[row]
    }
  }
  return latest
}

/** Returns each slice's innermost ancestor (not itself) among the wanted ones, -1 if there is none. */
export function nearest_ancestors(parent: Int32Array, wanted: Uint8Array): Int32Array {
  const nearest = new Int32Array(parent.length)
  for (let row = 0; row < parent.length; row++) {
    const above = parent[row]
    nearest[row] = above < 0 || wanted[above] == 1 ? above : nearest[above]
  }
  return nearest
}

export type Nesting = {ts: Float64Array, end: Float64Array, parent: Int32Array, subtree_end: Float64Array}

/** Returns some rows of a track nested among themselves; their parents are positions in `rows`, which are sorted by start. */
export function nest_rows(rows: Int32Array, starts: Float64Array, ends: Float64Array): Nesting & {rows: Int32Array} {
  const ts = gather(starts, rows)
  const end = gather(ends, rows)
  const parent = nest(ts, end)
  return {rows, ts, end, parent, subtree_end: subtree_ends(end, parent)}
}

/**
 * Add to `self` each slice's time inside [start, end) during which it is the latest-started open
 * one of its track. From its start until its subtree ends, a child takes its parent's time.
 */
export function add_self_times(self: Float64Array, nesting: Nesting, start: number, end: number, first: number, last: number): void {
  const {ts, parent, subtree_end} = nesting
  for (let row = first; row < last; row++) {
    const from = Math.max(ts[row], start)
    if (from >= end) {
      break // sorted by start: the rest begins after the window
    }
    const inside = Math.min(nesting.end[row], end) - from
    if (inside > 0) {
      self[row] += inside
    }
    const above = parent[row]
    if (above >= 0) {
      const taken = Math.min(subtree_end[row], nesting.end[above], end) - from
      if (taken > 0) {
        self[above] -= taken
      }
    }
  }
}

/** A stretch of time, in ticks, and the slice that was innermost in it. */
type Stretch = {slice: number, start: number, end: number}

/** Returns the time of a track cut where its innermost slice changes, in order, without time that no slice covers. */
export function innermost({ts, end, first_row}: Pick<Store, "ts" | "end" | "first_row">, track: number): Stretch[] {
  const stretches: Stretch[] = []
  const open: number[] = []
  let now = -Infinity
  const pass = (until: number): void => {
    while (open.length > 0 && now < until) {
      const slice = open[open.length - 1]
      if (end[slice] > now) {
        stretches.push({slice, start: now, end: Math.min(end[slice], until)})
        now = Math.min(end[slice], until)
      }
      if (end[slice] <= now) {
        open.pop()
      }
    }
    now = Math.max(now, until)
  }
  for (let slice = first_row[track]; slice < first_row[track + 1]; slice++) {
    pass(ts[slice])
    now = ts[slice]
    open.push(slice)
  }
  pass(Infinity)
  return stretches
}
