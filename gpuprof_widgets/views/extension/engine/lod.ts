/** Level of detail: what of a lane the screen can show, in time that depends on its pixels only. */

import {first_at_or_after} from "./intervals"
import {gather} from "./nest"
import type {Store} from "./store"

export type LevelOfDetail = {
  /** number of marks; the arrays hold that many values, ordered from left to right */
  n: number
  /** left and right edge in ticks, not cut at the edges of the view */
  x0: Float64Array
  x1: Float64Array
  /** row of the slice; of merged ones, the first */
  row: Int32Array
  /** slices behind the mark: 1, or more where all of them begin in one pixel and are shorter than one */
  merged: Uint32Array
}

/**
 * The marks of one level of a track between two times: slices of a pixel and more exactly, shorter
 * ones merged per pixel.
 */
export function level_of_detail(store: Store, track: number, depth: number, start: number, end: number, pixels: number): LevelOfDetail {
  const lane = lane_times(store, track, depth)
  const ticks_per_pixel = (end - start)/pixels
  const marks = new Marks()
  let i = first_ending_after(lane.ts, lane.end, start)
  while (i < lane.ts.length && lane.ts[i] < end) {
    const next = is_wide(i) ? i + 1 : end_of_run(i)
    marks.add(lane.ts[i], lane.end[next - 1], lane.rows[i], next - i)
    i = next
  }
  return marks.result()

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

type Lane = {rows: Int32Array, ts: Float64Array, end: Float64Array}

/** Starts and ends along a lane; both ascend, because its slices do not overlap. */
function lane_times(store: Store, track: number, depth: number): Lane {
  return store.lazily(`times of lane ${track} ${depth}`, () => {
    const rows = store.lane(track, depth)
    return {rows, ts: gather(store.ts, rows), end: gather(store.end, rows)}
  })
}

/** The first slice that ends after a time or, without length, lies there. */
function first_ending_after(ts: Float64Array, end: Float64Array, time: number): number {
  let i = first_at_or_after(end, time)
  while (i < end.length && end[i] == time && ts[i] < time) {
    i++
  }
  return i
}

/** First index from `i` on whose value is >= wanted, in steps that double: neighbours are found at once. */
function gallop(values: Float64Array, i: number, wanted: number): number {
  let step = 1
  let low = i
  while (i < values.length && values[i] < wanted) {
    low = i + 1
    i += step
    step *= 2
  }
  return first_at_or_after(values, wanted, low, Math.min(i, values.length))
}

/**
 * Row of the slice of one level of a track that covers a time, or else begins or ends nearest to it,
 * at most `tolerance` ticks away; -1 if there is none.
 */
export function hit(store: Store, track: number, depth: number, tick: number, tolerance: number): number {
  const lane = store.lane(track, depth)
  const next = first_starting_after(store.ts, lane, tick)
  const before = next > 0 ? lane[next - 1] : -1
  const after = next < lane.length ? lane[next] : -1
  const since_end = before < 0 ? Infinity : Math.max(tick - store.end[before], 0)
  const until_start = after < 0 ? Infinity : store.ts[after] - tick
  const nearest = since_end <= until_start ? before : after
  return Math.min(since_end, until_start) <= tolerance ? nearest : -1
}

function first_starting_after(ts: Float64Array, lane: Int32Array, tick: number): number {
  let low = 0
  let high = lane.length
  while (low < high) {
    const middle = (low + high) >>> 1
    if (ts[lane[middle]] <= tick) {
      low = middle + 1
    } else {
      high = middle
    }
  }
  return low
}

class Marks {
  private readonly x0: number[] = []
  private readonly x1: number[] = []
  private readonly row: number[] = []
  private readonly merged: number[] = []

  add(x0: number, x1: number, row: number, merged: number): void {
    this.x0.push(x0)
    this.x1.push(x1)
    this.row.push(row)
    this.merged.push(merged)
  }

  result(): LevelOfDetail {
    return {
      n: this.row.length,
      x0: Float64Array.from(this.x0),
      x1: Float64Array.from(this.x1),
      row: Int32Array.from(this.row),
      merged: Uint32Array.from(this.merged),
    }
  }
}
