/** The CPU rows that an op table counts in a window, and who answers for whom (analyses/op_rows.py). */

import {OUTSIDE} from "./kept"
import {add_self_times, gather, nest, subtree_ends} from "./nest"
import type {Nesting} from "./nest"
import type {Store, Window} from "./store"
import {group_rows, NONE} from "./store"

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
  const is_op = listed_rows(store).slice()
  for (let row = 0; row < store.rows; row++) {
    if (kept[row] == OUTSIDE) {
      is_op[row] = 0
    }
  }
  const {index, parent} = nearest_ops(store, is_op)
  return {is_op, index, parent, ...repeats(store, is_op, parent)}
}

/** Per row its self time (ticks) in the window among the rows that an op table may count. */
export function op_self_times(store: Store, window: Window): Float64Array {
  return self_times_among(store, window, "listed", () => listed_rows(store))
}

/** Per row of a mask (known by its name) its self time (ticks) in the window among the mask's rows. */
export function self_times_among(store: Store, window: Window, name: string, mask: () => Uint8Array): Float64Array {
  const self = new Float64Array(store.rows)
  for (const nesting of store.lazily(`${name} nestings`, () => nestings(store, mask()))) {
    const own = new Float64Array(nesting.rows.length)
    add_self_times(own, nesting, window.start, window.end, 0, own.length)
    for (let i = 0; i < own.length; i++) {
      self[nesting.rows[i]] = own[i]
    }
  }
  return self
}

/** Rows of CPU tracks, without those that never get a line in an op table. */
export function listed_rows(store: Store): Uint8Array {
  return store.lazily("listed", () => {
    const listed = store.by_label(Uint8Array.from(store.header.label, (_, label) => Number(!store.header.unlisted.includes(label))))
    store.header.tracks.forEach(({kind}, track) => {
      if (kind != "cpu") {
        listed.fill(0, store.first_row[track], store.first_row[track + 1])
      }
    })
    return listed
  })
}

/** The rows of a mask on each track, nested among themselves: what is not in it takes no time away. */
function nestings(store: Store, mask: Uint8Array): (Nesting & {rows: Int32Array})[] {
  return store.header.tracks.map((_, track) => {
    const first = store.first_row[track]
    const rows = group_rows(mask.subarray(first, store.first_row[track + 1]), first)[1] ?? new Int32Array(0)
    const ts = gather(store.ts, rows)
    const end = gather(store.end, rows)
    const parent = nest(ts, end)
    return {rows, ts, end, parent, subtree_end: subtree_ends(end, parent)}
  })
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

