/** Search of names by regular expression. */

/** A pattern of the page's search boxes, without regard to case; an invalid one is an answer, not an exception. */
export function compile(pattern: string): {regex: RegExp | null, error: string | null} {
  try {
    return {regex: new RegExp(pattern, "i"), error: null}
  } catch (error) {
    const reason = error instanceof Error ? error.message.replace(/^.*: /, "") : String(error)
    return {regex: null, error: `Not a regular expression: ${reason}`}
  }
}
