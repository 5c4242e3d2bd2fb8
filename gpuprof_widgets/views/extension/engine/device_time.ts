/** GPU time of a window, given to the ops that caused it. */

import type {Store, Window} from "./store"

/** GPU rows in the order of their rows; few beside the CPU rows, and needed for every window. */
export function gpu_rows(store: Store): Int32Array {
  return store.lazily("gpu_rows", () => {
    const rows: number[] = []
    for (let row = 0; row < store.rows; row++) {
      if (store.on_gpu[row] == 1) {
        rows.push(row)
      }
    }
    return Int32Array.from(rows)
  })
}

/** Per row, the GPU time (ticks) inside the window of the kernels and copies whose op it is. */
export function own_device_times(store: Store, window: Window): Float64Array {
  const device = new Float64Array(store.rows)
  for (const row of gpu_rows(store)) {
    const op = store.op[row]
    if (op >= 0) {
      device[op] += store.time_inside(row, window)
    }
  }
  return device
}

/** Each value and all those below it; a parent stands before its children. */
export function subtree_sums(own: Float64Array, parent: Int32Array): Float64Array {
  const sums = own.slice()
  for (let row = sums.length - 1; row >= 0; row--) {
    if (parent[row] >= 0 && sums[row] != 0) {
      sums[parent[row]] += sums[row]
    }
  }
  return sums
}
