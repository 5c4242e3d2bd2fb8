/** Calls across tracks (trace/owners.py): the backward pass, ops and Python frames; and the rows that a window keeps. */

import {gpu_rows} from "./device_time"
import {last_at_or_before} from "./intervals"
import {nest_rows, type Nesting} from "./nest"
import {NONE, type Store, type Window} from "./store"

/** The ops in which autograd runs one node of the backward pass have names that begin so. */
const BACKWARD = "autograd::engine::evaluate_function"

/**
 * Returns for each row of a backward pass the innermost cell line that was open when it began (of several
 * threads' lines the one that began last), -1 for all others.
 */
export function calling_lines(store: Store): Int32Array {
  return store.lazily("calling lines", () => calling_regions(store, cell_lines(store)))
}

/** Returns the same for annotations (`record_function`) outside of the backward pass. */
function calling_annotations(store: Store): Int32Array {
  return store.lazily("calling annotations", () => {
    const annotated = store.by_label(store.category_mask(["user_annotation"]))
    for (const row of backward_rows(store)) {
      annotated[row] = 0
    }
    return calling_regions(store, annotated)
  })
}

function calling_regions(store: Store, is_region: Uint8Array): Int32Array {
  const region = new Int32Array(store.rows).fill(NONE)
  const threads = store.header.tracks.map((_, track) => thread_of(store, store.masked_rows(track, is_region)))
    .filter(({rows}) => rows.length > 0)
  const called = threads.length == 0 ? [] : backward_rows(store)
  for (const row of called) {
    for (const thread of threads) {
      const at = innermost_open(thread, store.began[row])
      if (at >= 0 && (region[row] < 0 || thread.ts[at] > store.began[region[row]])) {
        region[row] = thread.rows[at]
      }
    }
  }
  return region
}

/**
 * Returns for each op the innermost Python frame of its thread that was open when it began, and for each frame
 * the innermost op (autograd calls Python from within an op), -1 for all others.
 */
function calling_python_or_op(store: Store): Int32Array {
  return store.lazily("calling Python or op", () => {
    const calling = new Int32Array(store.rows).fill(NONE)
    const {tracks} = store.header
    tracks.forEach((track, at) => {
      const kind_of_callers = {cpu: "python", python: "cpu"}[track.kind as string]
      tracks.forEach(({kind, lane}, other) => {
        if (kind == kind_of_callers && lane == track.lane) {
          const callers = thread_of(store, store.rows_of_track(other))
          for (const row of store.rows_of_track(at)) {
            const caller = innermost_open(callers, store.began[row])
            calling[row] = caller < 0 ? calling[row] : callers.rows[caller]
          }
        }
      })
    })
    return calling
  })
}

type Thread = Nesting & {rows: Int32Array}

function thread_of(store: Store, rows: Int32Array): Thread {
  return nest_rows(rows, store.began, store.ended)
}

/** Returns the position of the slice of a thread that is open at a time and began last, -1 for none. */
function innermost_open({ts, end, parent}: Thread, time: number): number {
  let at = last_at_or_before(ts, time)
  while (at >= 0 && end[at] <= time) {
    at = parent[at]
  }
  return at
}

/** Returns the rows of the backward pass. */
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

/** Returns a mask of the ops that autograd marks as the backward pass; the rows below them are part of it too. */
export function backward_ops(store: Store): Uint8Array {
  return store.lazily("backward ops", () => {
    const {label, names} = store.header
    const marked = store.by_label(Uint8Array.from(label, ([name]) => Number(names[name].startsWith(BACKWARD))))
    return marked.map((is_marked, row) => Number(is_marked == 1 || store.forward[row] >= 0))
  })
}

/** Returns a mask of the executions of the cell's lines. */
export function cell_lines(store: Store): Uint8Array {
  return store.lazily("cell lines", () => store.by_label(store.category_mask(["cell_line"])))
}

/** Whether the record of a window holds a row, as `kept_rows` returns it. */
export const OUTSIDE = 0
export const INSIDE = 1
/**
 * Outside, but the launch or op of GPU work inside, the forward op of a backward op, the line or annotation that
 * called the backward pass, their Python frame, or around one of these: rows inside keep their owners.
 */
const OWNER = 2

/** Returns for each row whether the record of a window holds it: OUTSIDE, INSIDE or OWNER. */
export function kept_rows(store: Store, window: Window): Uint8Array {
  const kept = new Uint8Array(store.rows)
  const owners: number[] = []
  const callers = [calling_lines(store), calling_annotations(store)]
  store.header.tracks.forEach((_, track) => {
    const last = store.first_row[track + 1]
    for (let row = store.first_row[track]; row < last && store.ts[row] <= window.end; row++) {
      if (store.is_inside(row, window)) {
        kept[row] = INSIDE
        owners.push(store.forward[row], ...callers.map((caller) => caller[row]))
      }
    }
  })
  for (const row of gpu_rows(store)) {
    if (kept[row] == INSIDE) {
      owners.push(store.owner[row], store.op[row])
    }
  }
  keep_owners(kept, owners, [store.parent, store.forward, calling_python_or_op(store), ...callers])
  return kept
}

/** Keeps owners, all rows around them, and the owners of those in turn. */
function keep_owners(kept: Uint8Array, owners: number[], links: readonly Int32Array[]): void {
  const seen = new Uint8Array(kept.length)
  for (let row = owners.pop(); row != null; row = owners.pop()) {
    if (row < 0 || seen[row] == 1) {
      continue
    }
    seen[row] = 1
    if (kept[row] == OUTSIDE) {
      kept[row] = OWNER
    }
    for (const link of links) {
      owners.push(link[row])
    }
  }
}
