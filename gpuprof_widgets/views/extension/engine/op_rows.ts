/** The CPU rows that an op table counts in a window, and who answers for whom (analyses/op_rows.py). */

import {OUTSIDE} from "./kept"
import {add_self_times, gather, nest, subtree_ends} from "./nest"
import type {Nesting} from "./nest"
import type {Store, Window} from "./store"
import {NONE} from "./store"

export type OpRows = {
  /** 1 for rows that are counted */
  is_op: Uint8Array
  /** a counted row itself, else the nearest counted one around it, -1 for none */
  index: Int32Array
  /** nearest counted row around a counted one, -1 for none */
  parent: Int32Array
  /** 1 for a row that has its parent's name and is its only child: they count as one, as in torch */
  repeat: Uint8Array
  /** the counted row to whose line of the table a row adds: itself, for a repeat its parent's host */
  host: Int32Array
}

export function op_rows(store: Store, kept: Uint8Array): OpRows {
  const listed = listed_rows(store)
  const is_op = listed.map((wanted, row) => Number(wanted == 1 && kept[row] != OUTSIDE))
  const {index, parent} = nearest_ops(store, is_op)
  return {is_op, index, parent, ...repeats(store, is_op, parent)}
}

/** Per row its self time (ticks) in the window among the rows that an op table may count. */
export function op_self_times(store: Store, window: Window): Float64Array {
  const self = new Float64Array(store.rows)
  for (const nesting of listed_nestings(store)) {
    const own = new Float64Array(nesting.rows.length)
    add_self_times(own, nesting, window.start, window.end, 0, own.length)
    nesting.rows.forEach((row, i) => self[row] = own[i])
  }
  return self
}

/** Rows of CPU tracks, without those that never get a line in an op table. */
function listed_rows(store: Store): Uint8Array {
  return store.lazily("listed", () => {
    const is_cpu = store.header.tracks.map(({kind}) => kind == "cpu")
    const unlisted = new Set(store.header.unlisted)
    return Uint8Array.from(store.label, (label, row) => Number(is_cpu[store.track[row]] && !unlisted.has(label)))
  })
}

type ListedNesting = Nesting & {rows: Int32Array}

/** The listed rows of each track, nested among themselves: what is not listed takes no time away. */
function listed_nestings(store: Store): ListedNesting[] {
  return store.lazily("listed nestings", () => store.header.tracks.map((_, track) => {
    const listed = listed_rows(store)
    const all = Int32Array.from({length: store.first_row[track + 1] - store.first_row[track]},
      (_, i) => store.first_row[track] + i)
    const rows = all.filter((row) => listed[row] == 1)
    const ts = gather(store.ts, rows)
    const end = gather(store.end, rows)
    const parent = nest(ts, end)
    return {rows, ts, end, parent, subtree_end: subtree_ends(end, parent)}
  }))
}

function nearest_ops(store: Store, is_op: Uint8Array): Pick<OpRows, "index" | "parent"> {
  const index = new Int32Array(store.rows)
  const parent = new Int32Array(store.rows)
  for (let row = 0; row < store.rows; row++) {
    const above = store.parent[row]
    parent[row] = above < 0 ? NONE : index[above]
    index[row] = is_op[row] == 1 ? row : parent[row]
  }
  return {index, parent}
}

function repeats(store: Store, is_op: Uint8Array, parent: Int32Array): Pick<OpRows, "repeat" | "host"> {
  const children = new Uint32Array(store.rows)
  for (let row = 0; row < store.rows; row++) {
    if (is_op[row] == 1 && parent[row] >= 0) {
      children[parent[row]]++
    }
  }
  const repeat = new Uint8Array(store.rows)
  const host = new Int32Array(store.rows)
  for (let row = 0; row < store.rows; row++) {
    const above = parent[row]
    repeat[row] = Number(is_op[row] == 1 && above >= 0 && children[above] == 1 && same_name(store, row, above))
    host[row] = repeat[row] == 1 ? host[above] : row
  }
  return {repeat, host}
}

function same_name(store: Store, a: number, b: number): boolean {
  return store.header.label[store.label[a]][0] == store.header.label[store.label[b]][0]
}

