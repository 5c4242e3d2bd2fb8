/** Which rows make up the record of a window: what lies in it, and the owners of its GPU work. */

import {gpu_rows} from "./device_time"
import type {Store, Window} from "./store"

export const OUTSIDE = 0
export const INSIDE = 1
/** lies outside, but is a launch or op (or around one) of GPU work inside: GPU time keeps its owner */
export const OWNER = 2

export function kept_rows(store: Store, window: Window): Uint8Array {
  const kept = new Uint8Array(store.rows)
  store.header.tracks.forEach((_, track) => {
    const last = store.first_row[track + 1]
    for (let row = store.first_row[track]; row < last && store.ts[row] <= window.end; row++) {
      kept[row] = store.is_inside(row, window) ? INSIDE : OUTSIDE
    }
  })
  for (const row of gpu_rows(store)) {
    if (kept[row] == INSIDE) {
      keep_owner(store, kept, store.owner[row])
      keep_owner(store, kept, store.op[row])
    }
  }
  return kept
}

/** A row and all around it; they may lie inside, but what is around an owner already has been kept. */
function keep_owner(store: Store, kept: Uint8Array, owner: number): void {
  for (let row = owner; row >= 0 && kept[row] != OWNER; row = store.parent[row]) {
    if (kept[row] == OUTSIDE) {
      kept[row] = OWNER
    }
  }
}
