/** The events next to one: beside it on its level, around it and inside it. */

import type {Store} from "./store"

/** The next or previous event on the same track and level; -1 at the end. */
export function step_aside(data: Store, row: number, direction: 1 | -1): number {
  if (row < 0) {
    return -1
  }
  for (let next = row + direction; next >= 0 && next < data.rows && data.track[next] == data.track[row]; next += direction) {
    if (data.depth[next] == data.depth[row]) {
      return next
    }
  }
  return -1
}

/** The event that contains this one (-1), or the first one that it contains (+1). */
export function step_level(data: Store, row: number, direction: 1 | -1): number {
  if (row < 0) {
    return -1
  }
  if (direction == -1) {
    return data.parent[row]
  }
  for (let next = row + 1; next < data.rows && data.track[next] == data.track[row] && data.ts[next] < data.end[row]; next++) {
    if (data.parent[next] == row) {
      return next
    }
  }
  return -1
}
