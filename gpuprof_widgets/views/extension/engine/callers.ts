/** Calls across tracks (trace/owners.py): the backward pass, ops and Python frames; and the rows that a window keeps. */

import type {Window} from "./columns"
import {last_at_or_before} from "./intervals"
import {nest_rows, type Nesting} from "./nest"
import {NONE, type Store} from "./store"

/** The ops in which autograd runs one node of the backward pass have names that begin so. */
const BACKWARD = "autograd::engine::evaluate_function"

/**
 * Returns for each row of a backward pass the innermost cell line that was open when it began (of several
 * threads' lines the one that began last), -1 for all others; null where no row has one.
 */
export function calling_lines(store: Store): Int32Array | null {
  return store.lazily("calling lines", () => calling_regions(store, cell_lines(store)))
}

/** Returns the same for annotations (`record_function`) outside of the backward pass. */
function calling_annotations(store: Store): Int32Array | null {
  return store.lazily("calling annotations", () => {
    const annotated = store.by_label(store.category_mask(["user_annotation"]))
    const inside = backward_rows(store)
    return calling_regions(store, annotated.map((is_annotation, row) => is_annotation & ~inside[row]))
  })
}

function calling_regions(store: Store, is_region: Uint8Array): Int32Array | null {
  const threads = store.header.tracks.map((_, track) => thread_of(store, store.masked_rows(track, is_region)))
    .filter(({rows}) => rows.length > 0)
  const called = backward_rows(store)
  if (threads.length == 0 || !called.includes(1)) {
    return null
  }
  const region = new Int32Array(store.rows).fill(NONE)
  for (let row = 0; row < store.rows; row++) {
    for (const thread of called[row] == 1 ? threads : []) {
      const at = innermost_open(thread, store.began[row])
      if (at >= 0 && (region[row] < 0 || thread.ts[at] > store.began[region[row]])) {
        region[row] = thread.rows[at]
      }
    }
  }
  return region.some((row) => row >= 0) ? region : null
}

/**
 * Returns for each op the innermost Python frame of its thread that was open when it began, and for each frame
 * the innermost op (autograd calls Python from within an op), -1 for all others; null without Python frames.
 */
function calling_python_or_op(store: Store): Int32Array | null {
  return store.lazily("calling Python or op", () => {
    const {tracks} = store.header
    if (!tracks.some(({kind, rows}) => kind == "python" && rows > 0)) {
      return null
    }
    const calling = new Int32Array(store.rows).fill(NONE)
    tracks.forEach((track, at) => {
      const kind_of_callers = {cpu: "python", python: "cpu"}[track.kind as string]
      tracks.forEach(({kind, lane}, other) => {
        if (kind == kind_of_callers && lane == track.lane) {
          const callers = thread_of(store, store.rows_of_track(other))
          for (let row = store.first_row[at]; row < store.first_row[at + 1]; row++) {
            const caller = innermost_open(callers, store.began[row])
            calling[row] = caller < 0 ? calling[row] : callers.rows[caller]
          }
        }
      })
    })
    return calling
  })
}

function thread_of(store: Store, rows: Int32Array): Nesting {
  return nest_rows(rows, store.began, store.ended)
}

/** Returns the position of the slice of a thread that is open at a time and began last, -1 for none. */
function innermost_open({ts, end, parent}: Nesting, time: number): number {
  let at = last_at_or_before(ts, time)
  while (at >= 0 && end[at] <= time) {
    at = parent[at]
  }
  return at
}

/** Returns a mask of the rows of the backward pass. */
function backward_rows(store: Store): Uint8Array {
  return store.lazily("backward rows", () => {
    const marked = backward_ops(store)
    const inside = new Uint8Array(store.rows)
    store.header.tracks.forEach(({kind}, track) => {
      for (let row = store.first_row[track]; kind == "cpu" && row < store.first_row[track + 1]; row++) {
        const above = store.parent[row]
        inside[row] = Number(marked[row] == 1 || (above >= 0 && inside[above] == 1))
      }
    })
    return inside
  })
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

/** Whether the record of a window holds a row, in `Kept.state`. */
export const OUTSIDE = 0
export const INSIDE = 1
/**
 * Outside, but the launch or op of GPU work inside, the forward op of a backward op, the line or annotation that
 * called the backward pass, their Python frame, or around one of these: rows inside keep their owners.
 */
const OWNER = 2

/** What the record of a window holds. */
export type Kept = {
  /** per row of the whole record OUTSIDE, INSIDE or OWNER */
  state: Uint8Array
  /** the rows that are there, ascending */
  rows: Int32Array
}

/** Returns what the record of a window holds. All views ask for the same window in turn: the last one is remembered. */
export function kept_rows(store: Store, window: Window): Kept {
  const last = store.lazily("kept", (): {window: Window | null, kept: Kept | null} => ({window: null, kept: null}))
  if (last.kept == null || last.window!.start != window.start || last.window!.end != window.end) {
    last.window = {...window}
    last.kept = kept_of(store, window)
  }
  return last.kept
}

function kept_of(store: Store, window: Window): Kept {
  const {forward, owner, op, parent} = store
  const state = new Uint8Array(store.rows)
  const callers = [calling_lines(store), calling_annotations(store)].filter((caller) => caller != null)
  const has_forward = forward instanceof Int32Array
  const owners: number[] = []
  store.header.tracks.forEach((_, track) => {
    const last = store.first_row[track + 1]
    for (let row = store.first_row[track]; row < last && store.ts[row] <= window.end; row++) {
      if (store.is_inside(row, window)) {
        state[row] = INSIDE
        if (has_forward && forward[row] >= 0) {
          owners.push(forward[row])
        }
        for (const caller of callers) {
          if (caller[row] >= 0) {
            owners.push(caller[row])
          }
        }
        if (store.on_gpu[row] == 1) {
          owners.push(owner[row], op[row])
        }
      }
    }
  })
  const links = [parent, ...has_forward ? [forward] : [], ...[calling_python_or_op(store)].filter((link) => link != null), ...callers]
  keep_owners(state, owners, links)
  return {state, rows: non_zero(state)}
}

/** Keeps owners, all rows around them, and the owners of those in turn. */
function keep_owners(state: Uint8Array, owners: number[], links: readonly Int32Array[]): void {
  const seen = new Uint8Array(state.length)
  for (let row = owners.pop(); row != null; row = owners.pop()) {
    if (row < 0 || seen[row] == 1) {
      continue
    }
    seen[row] = 1
    if (state[row] == OUTSIDE) {
      state[row] = OWNER
    }
    for (const link of links) {
      if (link[row] >= 0) {
        owners.push(link[row])
      }
    }
  }
}

function non_zero(state: Uint8Array): Int32Array {
  let count = 0
  for (let row = 0; row < state.length; row++) {
    count += Number(state[row] != 0)
  }
  const rows = new Int32Array(count)
  for (let row = 0, at = 0; at < count; row++) {
    if (state[row] != 0) {
      rows[at++] = row
    }
  }
  return rows
}
