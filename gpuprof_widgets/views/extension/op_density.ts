import {REGION_CATEGORIES} from "./engine"
import type {Store, Window} from "./engine"

/**
 * Share of each of `bins` equal parts of a range of time during which a track runs anything but annotations,
 * cell lines and modules: what is around the whole cell would say "busy" from end to end.
 */
export function op_density(store: Store, track: number, bins: number, {start, end}: Window = store.whole): Float32Array {
  const shares = new Float32Array(bins)
  const width = (end - start) / bins
  const around = store.category_mask(["user_annotation", "gpu_user_annotation", "nvtx_range", ...REGION_CATEGORIES])
  let covered = Math.min(start, store.whole.start)
  for (let row = store.first_row[track]; row < store.first_row[track + 1]; row++) {
    if (around[store.label[row]] == 0 && store.end[row] > covered) {
      add(shares, (Math.max(store.ts[row], covered) - start) / width, (store.end[row] - start) / width)
      covered = store.end[row]
    }
  }
  return shares
}

/**
 * How many calls are open on a track in each of `bins` equal parts of a range of time, on average, as shares of the
 * most: where one Python function is around all others, when anything ran says nothing.
 */
export function call_depth(store: Store, track: number, bins: number, {start, end}: Window): Float32Array {
  const depths = new Float32Array(bins)
  const width = (end - start) / bins
  for (let row = store.first_row[track]; row < store.first_row[track + 1]; row++) {
    add(depths, (store.ts[row] - start) / width, (store.end[row] - start) / width)
  }
  const most = depths.reduce((high, depth) => Math.max(high, depth), 0)
  return depths.map((depth) => most > 0 ? depth / most : 0)
}

/** Spreads an interval, given in bins, over the bins that it touches. */
function add(shares: Float32Array, from: number, to: number): void {
  const last = Math.min(shares.length, to)
  for (let bin = Math.max(0, Math.floor(from)); bin < last; bin++) {
    shares[bin] += Math.min(bin + 1, to) - Math.max(bin, from)
  }
}
