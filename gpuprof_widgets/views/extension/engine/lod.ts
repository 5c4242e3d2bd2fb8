/** Level of detail: the slices of a lane that a screen can show, in time that depends on its pixels only. */

import {first_at_or_after, last_at_or_before} from "./intervals"
import type {Times} from "./columns"
import {group_rows, type Store} from "./store"

export type LevelOfDetail = {
  /** number of marks; the arrays hold that many values, ordered from left to right */
  n: number
  /** left and right edge in ticks, not cut at the edges of the view */
  x0: number[]
  x1: number[]
  /** row of the slice; of merged ones, the first */
  row: number[]
  /** slices behind the mark: 1, or more where all of them begin in one pixel and are shorter than one */
  merged: number[]
}

/** Slices of one level of a track, ascending: they follow each other without overlap. */
export type LaneSlices = {track: number, depth: number, rows: Int32Array}

/**
 * Returns the marks of one level of a track between two times: slices of at least a pixel as they are,
 * shorter ones merged per pixel.
 */
export function level_of_detail(store: Store, track: number, depth: number, start: number, end: number, pixels: number): LevelOfDetail {
  return marks_of(store, {track, depth, rows: store.lane(track, depth)}, start, end, pixels)
}

/** Returns the marks of some slices of a level. */
export function marks_of(store: Store, lane: LaneSlices, start: number, end: number, pixels: number): LevelOfDetail {
  const {ts, end: ends} = store
  const {rows} = lane
  const ticks_per_pixel = (end - start)/pixels
  const marks: LevelOfDetail = {n: 0, x0: [], x1: [], row: [], merged: []}
  let i = first_ending_after(store, lane, start)
  while (i < rows.length && ts[rows[i]] < end) {
    const next = is_wide(i) ? i + 1 : end_of_run(i)
    marks.n += 1
    marks.x0.push(ts[rows[i]])
    marks.x1.push(ends[rows[next - 1]])
    marks.row.push(rows[i])
    marks.merged.push(next - i)
    i = next
  }
  return marks

  function is_wide(i: number): boolean {
    return ends[rows[i]] - ts[rows[i]] >= ticks_per_pixel
  }

  /** Index after the last of the short slices that begin in the pixel in which slice i begins. */
  function end_of_run(i: number): number {
    const pixel = Math.floor((ts[rows[i]] - start)/ticks_per_pixel)
    const next = gallop(ts, rows, i + 1, start + (pixel + 1)*ticks_per_pixel)
    // Slices do not overlap: only the last one that begins in a pixel can be longer than it.
    return next - 1 > i && is_wide(next - 1) ? next - 1 : next
  }
}

/** Returns some rows (ascending) by track and level. */
export function lanes_of_rows(store: Store, rows: Int32Array): LaneSlices[] {
  return store.header.tracks.flatMap((_, track) => {
    const of_track = store.those_on_track(track, rows)
    const levels = group_rows(Uint16Array.from(of_track, (row) => store.depth[row]), 0)
    return levels.flatMap((places, depth) => places.length == 0 ? [] : {track, depth, rows: places.map((i) => of_track[i])})
  })
}

/** Returns the index of the first slice that ends after a time or, without length, lies there: rows are sorted by start. */
function first_ending_after({ts, end, first_row}: Store, {track, rows}: LaneSlices, time: number): number {
  const next = first_at_or_after(rows, first_at_or_after(ts, time, first_row[track], first_row[track + 1]))
  return next > 0 && end[rows[next - 1]] > time ? next - 1 : next
}

/** Returns the first index from `i` on whose row starts at `bound` or later, in steps that double: a near one is reached at once. */
function gallop(ts: Times, rows: Int32Array, i: number, bound: number): number {
  let step = 1
  let low = i
  while (i < rows.length && ts[rows[i]] < bound) {
    low = i + 1
    i += step
    step *= 2
  }
  const high = Math.min(i, rows.length)
  // A binary search among all rows of the track between these two, then one for its place among the slices.
  return low == high ? low : first_at_or_after(rows, first_at_or_after(ts, bound, rows[low], rows[high - 1] + 1), low, high)
}

/**
 * Returns the row of the slice of one level of a track that covers a time, else of the nearest one that begins or
 * ends at most `tolerance` ticks away; -1 if there is none.
 */
export function hit(store: Store, track: number, depth: number, tick: number, tolerance: number): number {
  const {ts, end, first_row} = store
  const rows = store.lane(track, depth)
  const before = last_at_or_before(rows, last_at_or_before(ts, tick, first_row[track], first_row[track + 1]))
  const after = before + 1
  const since_end = before < 0 ? Infinity : Math.max(tick - end[rows[before]], 0)
  const until_start = after < rows.length ? ts[rows[after]] - tick : Infinity
  const nearest = since_end <= until_start ? before : after
  return Math.min(since_end, until_start) <= tolerance ? rows[nearest] : -1
}
