/** Search of names by regular expression. */

import type {Store} from "./store"

export type Search = {
  /** per label, 1 where its name matches; null while there is nothing to search for */
  matches: Uint8Array | null
  /** why the pattern cannot be used, in words for the page */
  error: string | null
}

/** Labels whose name matches, without regard to case. An invalid pattern is an answer, not an exception. */
export function search(store: Store, pattern: string): Search {
  if (pattern == "") {
    return {matches: null, error: null}
  }
  const {regex, error} = compile(pattern)
  if (regex == null) {
    return {matches: null, error}
  }
  const names = Uint8Array.from(store.header.names, (name) => Number(regex.test(name)))
  return {matches: Uint8Array.from(store.header.label, ([name]) => names[name]), error: null}
}

/** A regular expression of the page's search boxes: without regard to case. */
export function compile(pattern: string): {regex: RegExp | null, error: string | null} {
  try {
    return {regex: new RegExp(pattern, "i"), error: null}
  } catch (error) {
    const reason = error instanceof Error ? error.message.replace(/^.*: /, "") : String(error)
    return {regex: null, error: `Not a regular expression: ${reason}`}
  }
}
