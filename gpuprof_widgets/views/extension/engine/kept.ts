/** Which rows make up the record of a window: what lies in it, and who answers for that. */

import {calling_annotations, calling_lines, open_beside} from "./callers"
import {gpu_rows} from "./device_time"
import type {Store, Window} from "./store"

export const OUTSIDE = 0
export const INSIDE = 1
/** lies outside, but is the launch or op of GPU work inside, the forward op of a backward op, the line or
 * annotation that called the backward pass, their Python frame, or around one of these: what is inside
 * keeps its owners */
export const OWNER = 2

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
  keep_owners(kept, owners, [store.parent, store.forward, open_beside(store), ...callers])
  return kept
}

/** Owners, all around them, and who answers for those in turn. */
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
