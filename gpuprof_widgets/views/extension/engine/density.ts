/** How busy a track is over time, for the minimap. */

import type {Store, Window} from "./store"

/** Share of each of `bins` equal parts of the window during which the track has a slice open. */
export function density(store: Store, track: number, window: Window, bins: number): Float32Array {
  const busy = store.track_busy(track)
  const width = (window.end - window.start)/bins
  return Float32Array.from({length: bins}, (_, i) => {
    const start = window.start + i*width
    return width > 0 ? busy.covered(start, start + width)/width : 0
  })
}
