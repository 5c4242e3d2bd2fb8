/** Level of detail: the slices of a lane that a screen can show, in time that depends on its pixels only. */

import {first_at_or_after, last_at_or_before} from "./intervals"
import {gather} from "./nest"
import type {Times} from "./rows"
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

/**
 * Returns the marks of one level of a track between two times: slices of at least a pixel as they are,
 * shorter ones merged per pixel.
 */
export function level_of_detail(store: Store, track: number, depth: number, start: number, end: number, pixels: number): LevelOfDetail {
  return marks_of(lane_times(store, track, depth), start, end, pixels)
}

/** Returns the marks of slices that follow each other without overlap. */
export function marks_of(lane: Slices, start: number, end: number, pixels: number): LevelOfDetail {
  const ticks_per_pixel = (end - start)/pixels
  const marks: LevelOfDetail = {n: 0, x0: [], x1: [], row: [], merged: []}
  let i = first_ending_after(lane.ts, lane.end, start)
  while (i < lane.ts.length && lane.ts[i] < end) {
    const next = is_wide(i) ? i + 1 : end_of_run(i)
    marks.n += 1
    marks.x0.push(lane.ts[i])
    marks.x1.push(lane.end[next - 1])
    marks.row.push(lane.rows[i])
    marks.merged.push(next - i)
    i = next
  }
  return marks

  function is_wide(i: number): boolean {
    return lane.end[i] - lane.ts[i] >= ticks_per_pixel
  }

  /** Index after the last of the short slices that begin in the pixel in which slice i begins. */
  function end_of_run(i: number): number {
    const pixel = Math.floor((lane.ts[i] - start)/ticks_per_pixel)
    const next = gallop(lane.ts, i + 1, start + (pixel + 1)*ticks_per_pixel)
    // Slices do not overlap: only the last one that begins in a pixel can be longer than it.
    return next - 1 > i && is_wide(next - 1) ? next - 1 : next
  }
}

/** Slices that follow each other; both starts and ends ascend. */
type Slices = {rows: Int32Array, ts: Times, end: Times}

/** Slices of one level of a track. */
export type LaneSlices = Slices & {track: number, depth: number}

function slices_of(store: Store, rows: Int32Array): Slices {
  return {rows, ts: gather(store.ts, rows), end: gather(store.end, rows)}
}

function lane_times(store: Store, track: number, depth: number): Slices {
  return store.lazily(`times of lane ${track} ${depth}`, () => slices_of(store, store.lane(track, depth)))
}

/** Returns some rows (ascending) by track and level. */
export function lanes_of_rows(store: Store, rows: Int32Array): LaneSlices[] {
  return store.header.tracks.flatMap((_, track) => {
    const [first, last] = [track, track + 1].map((at) => first_at_or_after(rows, store.first_row[at]))
    const of_track = rows.subarray(first, last)
    const levels = group_rows(Uint16Array.from(of_track, (row) => store.depth[row]), 0)
    return levels.flatMap((places, depth) => places.length == 0 ? [] : {track, depth, ...slices_of(store, places.map((i) => of_track[i]))})
  })
}

/** Returns the index of the first slice that ends after a time or, without length, lies there. */
function first_ending_after(ts: Times, end: Times, time: number): number {
  let i = first_at_or_after(end, time)
  while (i < end.length && end[i] == time && ts[i] < time) {
    i++
  }
  return i
}

/** Returns the first index from `i` on whose value is at least `bound`, in steps that double: a near one is reached at once. */
function gallop(values: Times, i: number, bound: number): number {
  let step = 1
  let low = i
  while (i < values.length && values[i] < bound) {
    low = i + 1
    i += step
    step *= 2
  }
  return first_at_or_after(values, bound, low, Math.min(i, values.length))
}

/**
 * Returns the row of the slice of one level of a track that covers a time, else of the nearest one that begins or
 * ends at most `tolerance` ticks away; -1 if there is none.
 */
export function hit(store: Store, track: number, depth: number, tick: number, tolerance: number): number {
  const {rows, ts, end} = lane_times(store, track, depth)
  const before = last_at_or_before(ts, tick)
  const after = before + 1
  const since_end = before < 0 ? Infinity : Math.max(tick - end[before], 0)
  const until_start = after < rows.length ? ts[after] - tick : Infinity
  const nearest = since_end <= until_start ? before : after
  return Math.min(since_end, until_start) <= tolerance ? rows[nearest] : -1
}

/** The start or end of an event. */
export type Edge = {row: number, side: "start" | "end"}

/** Returns the time of an edge in ticks. */
export function tick_of_edge(store: Store, {row, side}: Edge): number {
  return side == "start" ? store.ts[row] : store.end[row]
}

/**
 * Returns the start or end of an event of a track that is nearest to a time, at most `tolerance` ticks away; null if there is none.
 * Of equally near ones it is that of the level nearest to `depth`, and on one level that of the event around the time.
 */
export function nearest_edge(store: Store, track: number, depth: number, tick: number, tolerance: number): Edge | null {
  let nearest: {edge: Edge, distances: number[]} | null = null
  for (let level = 0; level < store.levels(track); level++) {
    const {rows, ts, end} = lane_times(store, track, level)
    for (const [side, times] of [["start", ts], ["end", end]] as const) {
      const after = first_at_or_after(times, tick)
      for (const i of [after - 1, after]) {
        const distances = [Math.abs(times[i] - tick), Math.abs(level - depth), Number(ts[i] > tick || end[i] < tick)]
        if (distances[0] <= tolerance && (nearest == null || is_less(distances, nearest.distances))) {
          nearest = {edge: {row: rows[i], side}, distances}
        }
      }
    }
  }
  return nearest?.edge ?? null
}

/** Whether one list of numbers comes before another where the first difference decides. */
function is_less(a: number[], b: number[]): boolean {
  const i = a.findIndex((value, i) => value != b[i])
  return i >= 0 && a[i] < b[i]
}
