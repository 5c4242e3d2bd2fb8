/** Who is running: the latest-started slice of a track that is still open, moment by moment. */

import type {Store} from "./store"

/** A stretch of time, in ticks, and the slice that was innermost in it. */
export type Stretch = {slice: number, start: number, end: number}

/** The time of a track cut where its innermost slice changes, in order; without what no slice covers. */
export function innermost({ts, end, first_row}: Pick<Store, "ts" | "end" | "first_row">, track: number): Stretch[] {
  const found: Stretch[] = []
  const open: number[] = []
  let now = -Infinity
  const pass = (until: number): void => {
    while (open.length > 0 && now < until) {
      const slice = open[open.length - 1]
      if (end[slice] > now) {
        found.push({slice, start: now, end: Math.min(end[slice], until)})
        now = Math.min(end[slice], until)
      }
      if (end[slice] <= now) {
        open.pop()
      }
    }
    now = Math.max(now, until)
  }
  for (let slice = first_row[track]; slice < first_row[track + 1]; slice++) {
    pass(ts[slice])
    now = ts[slice]
    open.push(slice)
  }
  pass(Infinity)
  return found
}
