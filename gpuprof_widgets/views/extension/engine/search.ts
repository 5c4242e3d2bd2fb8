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

export type Matcher = {test: (name: string) => boolean, error: string | null}

/** Tests names against what was typed: as a part of the name, or as a regular expression; case never matters. */
export function matcher(text: string, as_regex: boolean): Matcher {
  if (!as_regex) {
    const wanted = text.toLowerCase()
    return {test: (name) => name.toLowerCase().includes(wanted), error: null}
  }
  const {regex, error} = compile(text)
  return {test: (name) => regex?.test(name) ?? false, error}
}
