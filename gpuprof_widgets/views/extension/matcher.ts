import {compile} from "./engine"

type Matcher = {test: (name: string) => boolean, error: string | null}

/** Tests names against what was typed: as a part of the name, or as a regular expression; case never matters. */
export function matcher(text: string, as_regex: boolean): Matcher {
  if (!as_regex) {
    const wanted = text.toLowerCase()
    return {test: (name) => name.toLowerCase().includes(wanted), error: null}
  }
  const {regex, error} = compile(text)
  return {test: (name) => regex?.test(name) ?? false, error}
}
