/** Steps and annotations: the ranges that the user named, drawn as bands behind the tracks. */

import type {Store} from "./store"

/** Times in ticks. */
export type Band = {kind: "step" | "annotation", name: string, row: number, start: number, end: number}

const STEP = /^ProfilerStep#\d+$/

/** Bands in the order of time, from the CPU's side of annotations (their GPU side is a track). */
export function bands(store: Store): Band[] {
  return store.lazily("bands", () => {
    const is_annotation = store.category_mask(["user_annotation", "nvtx_range"])
    const found: Band[] = []
    for (let row = 0; row < store.rows; row++) {
      if (is_annotation[store.label[row]] == 1 && store.end[row] > store.ts[row]) {
        const name = store.name(row)
        const kind = STEP.test(name) ? "step" : "annotation"
        found.push({kind, name, row, start: store.ts[row], end: store.end[row]})
      }
    }
    return found.sort((a, b) => a.start - b.start || b.end - a.end)
  })
}
