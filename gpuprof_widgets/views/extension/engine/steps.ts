/** Steps of a profiler: one line of the op table and one node of a call tree, as in torch, and bands behind the plots. */

import type {Store} from "./store"

/** The name that a slice goes by in op tables and call trees. */
export function merged_name(name: string): string {
  return name.startsWith("ProfilerStep#") ? "ProfilerStep*" : name
}

/** Per label, the first one with its category and merged name. */
export function merged_labels(store: Store): Int32Array {
  return store.lazily("merged_labels", () => {
    const {names, label} = store.header
    const first = new Map<string, number>()
    return Int32Array.from(label, ([name, category], i) => {
      const key = `${category} ${merged_name(names[name])}`
      if (!first.has(key)) {
        first.set(key, i)
      }
      return first.get(key)!
    })
  })
}

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
