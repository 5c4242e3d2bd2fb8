/** Which slice is inside which on one track, and the self time of each. */

import type {Slices, Times, Window} from "./columns"

/**
 * Returns the parent of every slice: the latest-started slice that is still open (`end > ts`) when this one
 * starts, -1 for none; it need not outlast its child. Slices are sorted by start.
 */
export function nest(ts: ArrayLike<number>, end: ArrayLike<number>): Int32Array {
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

/** Returns the times of some rows: a view of them where one row follows the other. */
export function gather<T extends Times>(times: T, rows: Int32Array): T {
  if (rows.length > 0 && rows.every((row, i) => row == rows[0] + i)) {
    return times.subarray(rows[0], rows[0] + rows.length) as T
  }
  const gathered = new (times.constructor as new (length: number) => T)(rows.length)
  for (let i = 0; i < gathered.length; i++) {
    gathered[i] = times[rows[i]]
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

/** Returns the latest end of each slice and of everything below it: `end` itself where no child outlasts its parent. */
export function subtree_ends(end: Times, parent: Int32Array): Times {
  if (parent.every((above, row) => above < 0 || end[row] <= end[above])) {
    return end
  }
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

/** Some slices nested among themselves; a parent is the position of one. */
export type Nesting = {rows: Int32Array, ts: Times, end: Times, parent: Int32Array}

/** Returns some rows of a track nested among themselves; their parents are positions in `rows`, which are sorted by start. */
export function nest_rows(rows: Int32Array, starts: Times, ends: Times): Nesting {
  const ts = gather(starts, rows)
  const end = gather(ends, rows)
  return {rows, ts, end, parent: nest(ts, end)}
}

/** The rows of a mask nested among themselves, by row. */
export type Among = {
  /** row of the parent, -1 for none, `LEFT_OUT` for rows outside of the mask */
  parent: Int32Array
  /** latest end of a row and of everything below it */
  subtree_end: Times
}

const LEFT_OUT = -2

/** Returns the rows of a mask nested among themselves on each track: rows outside of it take no time away. */
export function nest_among(store: Slices, mask: Uint8Array): Among {
  const {ts, end, first_row} = store
  const parent = new Int32Array(ts.length).fill(LEFT_OUT)
  for (let track = 0; track + 1 < first_row.length; track++) {
    const open: number[] = []
    for (let row = first_row[track]; row < first_row[track + 1]; row++) {
      if (mask[row] == 1) {
        while (open.length > 0 && end[open[open.length - 1]] <= ts[row]) {
          open.pop()
        }
        parent[row] = open.length > 0 ? open[open.length - 1] : -1
        open.push(row)
      }
    }
  }
  return {parent, subtree_end: subtree_ends(end, parent)}
}

/**
 * Returns for each row of a mask its time (ticks) inside the window during which it is the latest-started open
 * one of the mask's on its track. From its start until its subtree ends, a child takes its parent's time.
 */
export function self_times_among(store: Slices, {parent, subtree_end}: Among, window: Window): Float64Array {
  const {ts, end, first_row} = store
  const {start, end: last_moment} = window
  const self = new Float64Array(ts.length)
  for (let track = 0; track + 1 < first_row.length; track++) {
    for (let row = first_row[track]; row < first_row[track + 1]; row++) {
      const from = Math.max(ts[row], start)
      if (from >= last_moment) {
        break // sorted by start: the rest begins after the window
      }
      const above = parent[row]
      if (above == LEFT_OUT || subtree_end[row] <= start) {
        continue
      }
      const inside = Math.min(end[row], last_moment) - from
      if (inside > 0) {
        self[row] += inside
      }
      if (above >= 0) {
        const taken = Math.min(subtree_end[row], end[above], last_moment) - from
        if (taken > 0) {
          self[above] -= taken
        }
      }
    }
  }
  return self
}

/** Visits the stretches (ticks) of a track between which its innermost slice changes, in order; time that no slice covers is left out. */
export function innermost(
  {ts, end, first_row}: Slices, track: number, visit: (slice: number, start: number, end: number) => void,
): void {
  const open: number[] = []
  let now = -Infinity
  const pass = (until: number): void => {
    while (open.length > 0 && now < until) {
      const slice = open[open.length - 1]
      if (end[slice] > now) {
        visit(slice, now, Math.min(end[slice], until))
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
}
