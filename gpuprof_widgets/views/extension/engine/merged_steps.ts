/** All steps of a profiler are one line of the op table and one node of a call tree, as in torch. */

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
