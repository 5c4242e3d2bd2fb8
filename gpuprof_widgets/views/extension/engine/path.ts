/** The critical path: the chain of work and waiting that made the run as long as it was. */

import type {PathHeader} from "./header"
import type {Store} from "./store"
import {NONE} from "./store"

/** One piece of the path; times in ns, `row` is -1 where it is no slice. */
export type PathPiece = {start: number, end: number, row: number, kind: string}

/** The pieces in order of time; none where no path is known. */
export function path_pieces(store: Store): PathPiece[] {
  return store.lazily("path", () => store.header.path == null ? [] : pieces_of(store.header.path))
}

function pieces_of({start, dur, row, kind, kinds}: PathHeader): PathPiece[] {
  let at = 0
  return start.map((step, i) => {
    at += step
    return {start: at, end: at + dur[i], row: row[i] ?? NONE, kind: kinds[kind[i]]}
  })
}
