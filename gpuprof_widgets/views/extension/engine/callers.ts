/** Who called what on another track: the backward pass, and ops and Python frames (trace/callers.py). */

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
  return store.lazily("calling lines", () => calling_regions(store, cell_lines(store)))
}

/** The same for annotations (`record_function`) outside of the backward pass. */
export function calling_annotations(store: Store): Int32Array {
  return store.lazily("calling annotations", () => {
    const annotated = store.by_label(store.category_mask(["user_annotation"]))
    for (const row of backward_rows(store)) {
      annotated[row] = 0
    }
    return calling_regions(store, annotated)
  })
}

function calling_regions(store: Store, is_region: Uint8Array): Int32Array {
  const found = new Int32Array(store.rows).fill(NONE)
  const threads = by_track(store, is_region)
  const called = threads.length == 0 ? [] : backward_rows(store)
  for (const row of called) {
    for (const thread of threads) {
      const at = innermost_open(thread, store.began[row])
      if (at >= 0 && (found[row] < 0 || thread.ts[at] > store.began[found[row]])) {
        found[row] = thread.rows[at]
      }
    }
  }
  return found
}

/**
 * Per op the innermost Python frame of its thread that was open when it began, and per frame the
 * innermost op (autograd calls Python from within an op); else -1.
 */
export function open_beside(store: Store): Int32Array {
  return store.lazily("open beside", () => {
    const found = new Int32Array(store.rows).fill(NONE)
    const {tracks} = store.header
    tracks.forEach((track, here) => {
      const beside = track.kind == "cpu" ? "python" : track.kind == "python" ? "cpu" : ""
      tracks.forEach(({kind, lane}, there) => {
        const callers = kind == beside && lane == track.lane ? thread_of(store, rows_of_track(store, there)) : null
        for (let row = store.first_row[here]; callers != null && row < store.first_row[here + 1]; row++) {
          const at = innermost_open(callers, store.began[row])
          found[row] = at < 0 ? found[row] : callers.rows[at]
        }
      })
    })
    return found
  })
}

type Thread = {rows: Int32Array, ts: Float64Array, end: Float64Array, parent: Int32Array}

/** Position of the slice of a track that is open at that time and began last, -1 for none. */
function innermost_open({ts, end, parent}: Thread, time: number): number {
  let at = last_by(ts, time)
  while (at >= 0 && end[at] <= time) {
    at = parent[at]
  }
  return at
}

function by_track(store: Store, chosen: Uint8Array): Thread[] {
  return store.header.tracks.flatMap((_, track) => {
    const first = store.first_row[track]
    const rows = group_rows(chosen.subarray(first, store.first_row[track + 1]), first)[1]
    return rows == null ? [] : [thread_of(store, rows)]
  })
}

function rows_of_track(store: Store, track: number): Int32Array {
  const first = store.first_row[track]
  return Int32Array.from({length: store.first_row[track + 1] - first}, (_, i) => first + i)
}

function thread_of(store: Store, rows: Int32Array): Thread {
  const ts = gather(store.began, rows)
  const end = gather(store.ended, rows)
  return {rows, ts, end, parent: nest(ts, end)}
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
