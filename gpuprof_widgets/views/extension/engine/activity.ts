/** How busy the tracks of a kind are over a range of time: the strips of the overview. */

import type {Window} from "./columns"
import {REGION_CATEGORIES, type Store} from "./store"

export type ActivityKind = "cpu" | "gpu" | "copy" | "python"

/**
 * Returns, per pixel of a range of time, how busy the tracks of a kind are, or how deep Python's calls, from 0 to 1: of
 * several tracks the most counts. Null where the record has no such track.
 */
export function activity(store: Store, kind: ActivityKind, window: Window, pixels: number): Float32Array | null {
  const tracks = store.header.tracks.flatMap((track, i) => track.kind == kind ? [i] : [])
  const shares = new Float32Array(pixels)
  const measure = kind == "python" ? call_depth : op_density
  for (const track of tracks) {
    measure(store, track, pixels, window).forEach((share, i) => { shares[i] = Math.max(shares[i], share) })
  }
  return tracks.length == 0 ? null : shares
}

/**
 * Share of each of `bins` equal parts of a range of time during which a track runs anything but annotations,
 * cell lines and modules: with those around the whole cell it would be busy from end to end.
 */
function op_density(store: Store, track: number, bins: number, {start, end}: Window): Float32Array {
  const shares = new Float32Array(bins)
  const width = (end - start)/bins
  const around = store.category_mask(["user_annotation", "gpu_user_annotation", "nvtx_range", ...REGION_CATEGORIES])
  let covered = Math.min(start, store.whole.start)
  for (let row = store.first_row[track]; row < store.first_row[track + 1]; row++) {
    if (around[store.label[row]] == 0 && store.end[row] > covered) {
      add(shares, (Math.max(store.ts[row], covered) - start)/width, (store.end[row] - start)/width)
      covered = store.end[row]
    }
  }
  return shares
}

/**
 * How many calls are open on a track in each of `bins` equal parts of a range of time, on average, as shares of the
 * most: where one Python function is around all others, a track is busy from end to end.
 */
function call_depth(store: Store, track: number, bins: number, {start, end}: Window): Float32Array {
  const depths = new Float32Array(bins)
  const width = (end - start)/bins
  for (let row = store.first_row[track]; row < store.first_row[track + 1]; row++) {
    add(depths, (store.ts[row] - start)/width, (store.end[row] - start)/width)
  }
  const most = depths.reduce((high, depth) => Math.max(high, depth), 0)
  return depths.map((depth) => most > 0 ? depth/most : 0)
}

/** Spreads an interval, given in bins, over the bins that it touches. */
function add(shares: Float32Array, from: number, to: number): void {
  const last = Math.min(shares.length, to)
  for (let bin = Math.max(0, Math.floor(from)); bin < last; bin++) {
    shares[bin] += Math.min(bin + 1, to) - Math.max(bin, from)
  }
}
