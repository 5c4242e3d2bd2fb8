/** The critical path: the chain of work and waiting that made the run as long as it was. */

import {panel} from "./panels"
import type {Store} from "./store"

/** The analysis whose events the path's pieces are. */
export const PATH_PANEL = "critical_path"

/** One piece of the path; times in ns; `row` and `track` are -1 where it is no slice, or of no track. */
export type PathPiece = {start: number, end: number, row: number, track: number}

export function has_path(store: Store): boolean {
  return store.header.panels.some(({name}) => name == PATH_PANEL)
}

/** The pieces in order of time; none where no path is known. */
export function path_pieces(store: Store): PathPiece[] {
  return store.lazily("path", () => {
    const events = panel(store, PATH_PANEL)?.events
    const pieces = events == null ? [] : Array.from(events.start, (start, i): PathPiece =>
      ({start: store.ns(start), end: store.ns(events.end[i]), row: events.row[i], track: events.track[i]}))
    return pieces.sort((a, b) => a.start - b.start || a.end - b.end)
  })
}
