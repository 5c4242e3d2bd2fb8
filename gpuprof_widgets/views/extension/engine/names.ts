/** Names of slices: steps under one name, bands behind the plots, and search. */

import type {Store} from "./store"

/** Returns the name of a slice in op tables and call trees: as in torch, all steps of a profiler share one. */
export function merged_name(name: string): string {
  return name.startsWith("ProfilerStep#") ? "ProfilerStep*" : name
}

/** Returns a kernel's own name: without `void`, namespaces, template arguments and parameters. */
export function kernel_name(name: string): string {
  const [qualified = ""] = /^[\w:~$]+/.exec(name.replace(/^void /, "").replaceAll(/(\(anonymous namespace\)|<unnamed>)::/g, "")) ?? []
  return qualified.split("::").at(-1) || name
}

/** Returns for each label the first one with its category and merged name. */
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

/** Returns the bands in order of time, from the CPU's side of annotations (their GPU side is a track). */
export function bands(store: Store): Band[] {
  return store.lazily("bands", () => {
    const is_annotation = store.category_mask(["user_annotation", "nvtx_range"])
    const sorted: Band[] = []
    for (let row = 0; row < store.rows; row++) {
      if (is_annotation[store.label[row]] == 1 && store.end[row] > store.ts[row]) {
        const name = store.name(row)
        const kind = STEP.test(name) ? "step" : "annotation"
        sorted.push({kind, name, row, start: store.ts[row], end: store.end[row]})
      }
    }
    return sorted.sort((a, b) => a.start - b.start || b.end - a.end)
  })
}

/** Compiles a pattern of a search box, in any case; an invalid one gives an error message, not an exception. */
export function compile(pattern: string): {regex: RegExp | null, error: string | null} {
  try {
    return {regex: new RegExp(pattern, "i"), error: null}
  } catch (error) {
    const reason = error instanceof Error ? error.message.replace(/^.*: /, "") : String(error)
    return {regex: null, error: `Not a regular expression: ${reason}`}
  }
}

export type Matcher = {test: (name: string) => boolean, error: string | null}

/** Returns a test of names: whether they contain a text or match it as a regular expression, in any case. */
export function matcher(text: string, as_regex: boolean): Matcher {
  if (!as_regex) {
    const wanted = text.toLowerCase()
    return {test: (name) => name.toLowerCase().includes(wanted), error: null}
  }
  const {regex, error} = compile(text)
  return {test: (name) => regex?.test(name) ?? false, error}
}
