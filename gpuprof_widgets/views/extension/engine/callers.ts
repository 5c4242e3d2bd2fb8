/** Who waits for the backward pass: the cell line that called it, from another thread (trace/callers.py). */

import {gather, nest} from "./nest"
import type {Store} from "./store"
import {group_rows, NONE} from "./store"

/** How the names of the ops begin in which autograd runs one node of the backward pass. */
const BACKWARD = "autograd::engine::evaluate_function"

/**
 * Per row of a backward pass the innermost cell line that was open when it began, of several threads'
 * lines the one that began last; else -1.
 */
export function calling_lines(store: Store): Int32Array {
  return store.lazily("calling lines", () => {
    const found = new Int32Array(store.rows).fill(NONE)
    const threads = lines_by_track(store)
    const called = threads.length == 0 ? [] : backward_rows(store)
    for (const row of called) {
      for (const {rows, ts, end, parent} of threads) {
        let at = last_by(ts, store.began[row])
        while (at >= 0 && end[at] <= store.began[row]) {
          at = parent[at]
        }
        if (at >= 0 && (found[row] < 0 || ts[at] > store.began[found[row]])) {
          found[row] = rows[at]
        }
      }
    }
    return found
  })
}

type Thread = {rows: Int32Array, ts: Float64Array, end: Float64Array, parent: Int32Array}

function lines_by_track(store: Store): Thread[] {
  const is_line = cell_lines(store)
  return store.header.tracks.flatMap((_, track) => {
    const first = store.first_row[track]
    const rows = group_rows(is_line.subarray(first, store.first_row[track + 1]), first)[1]
    if (rows == null) {
      return []
    }
    const ts = gather(store.began, rows)
    const end = gather(store.ended, rows)
    return [{rows, ts, end, parent: nest(ts, end)}]
  })
}

function backward_rows(store: Store): number[] {
  const marked = backward_ops(store)
  const inside = new Uint8Array(store.rows)
  const rows: number[] = []
  store.header.tracks.forEach(({kind}, track) => {
    for (let row = store.first_row[track]; kind == "cpu" && row < store.first_row[track + 1]; row++) {
      const above = store.parent[row]
      if (marked[row] == 1 || (above >= 0 && inside[above] == 1)) {
        inside[row] = 1
        rows.push(row)
      }
    }
  })
  return rows
}

/** 1 for the ops of the backward pass that autograd marks as such; what is below them is part of it too. */
export function backward_ops(store: Store): Uint8Array {
  return store.lazily("backward ops", () => {
    const {label, names} = store.header
    const marked = store.by_label(Uint8Array.from(label, ([name]) => Number(names[name].startsWith(BACKWARD))))
    return marked.map((is_marked, row) => Number(is_marked == 1 || store.forward[row] >= 0))
  })
}

export function cell_lines(store: Store): Uint8Array {
  return store.lazily("cell lines", () => store.by_label(store.category_mask(["cell_line"])))
}

/** Last of the ascending times that is not after a time, -1 if none is. */
function last_by(times: Float64Array, time: number): number {
  let low = 0
  let high = times.length
  while (low < high) {
    const middle = (low + high) >>> 1
    if (times[middle] <= time) {
      low = middle + 1
    } else {
      high = middle
    }
  }
  return low - 1
}
