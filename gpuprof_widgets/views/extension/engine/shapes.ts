/** Checks of data from a file, which may have been written to harm: its shape, its numbers, and how much of it there is. */

/** Throws a `DamagedData` where a value is not what it has to be. */
export type Check = (value: unknown) => void

/** `place`: where in the data it is wrong, as in `.names[3]`. */
export class DamagedData extends Error {
  constructor(readonly wanted: string, readonly place: string = "") {
    super(`the report's data is damaged: ${place == "" ? "it" : place.replace(/^\./, "")} is not ${wanted}`)
  }
}

const MOST_ITEMS = 2 ** 27

function demand(is_right: boolean, wanted: string): asserts is_right {
  if (!is_right) {
    throw new DamagedData(wanted)
  }
}

/** Says where it was that a check failed. */
function inside(place: string, error: unknown): unknown {
  return error instanceof DamagedData ? new DamagedData(error.wanted, place + error.place) : error
}

export const text: Check = (value) => demand(typeof value == "string", "a text")

export const flag: Check = (value) => demand(typeof value == "boolean", "true or false")

export const number: Check = (value) => demand(typeof value == "number" && Number.isFinite(value), "a number")

export const nothing: Check = (value) => demand(value === null, "empty")

export const anything: Check = () => {}

/** A whole number from `least` to below `end`. */
export function whole(least: number = -(2 ** 53), end: number = 2 ** 53): Check {
  return (value) => demand(Number.isInteger(value) && Number(value) >= least && Number(value) < end, "a whole number in its range")
}

export function one_of(...choices: string[]): Check {
  return (value) => demand(choices.includes(value as string), choices.join(" or "))
}

/** What one of the checks takes; the last of them says what is wrong. */
export function either(...checks: Check[]): Check {
  return (value) => {
    const fits = checks.slice(0, -1).some((check) => {
      try {
        check(value)
        return true
      } catch {
        return false
      }
    })
    if (!fits) {
      checks.at(-1)!(value)
    }
  }
}

export function list(check: Check, most: number = MOST_ITEMS): Check {
  return (value) => {
    demand(Array.isArray(value) && value.length <= most, `a list of at most ${most}`)
    each(value, () => check)
  }
}

/** A list of as many items, each with a check of its own. */
export function tuple(...checks: Check[]): Check {
  return (value) => {
    demand(Array.isArray(value) && value.length == checks.length, `a list of ${checks.length}`)
    each(value, (i) => checks[i])
  }
}

function each(items: unknown[], check_of: (i: number) => Check): void {
  let at = 0
  try {
    for (; at < items.length; at++) {
      check_of(at)(items[at])
    }
  } catch (error) {
    throw inside(`[${at}]`, error)
  }
}

/** An object with these fields, of which those in `optional` may be missing; others are not looked at. */
export function fields(checks: Record<string, Check>, optional: Record<string, Check> = {}): Check {
  const all = [...Object.entries(checks), ...Object.entries(optional)]
  return (value) => {
    demand(is_object(value), "an object")
    for (const [name, check] of all) {
      if (Object.hasOwn(value, name) || name in checks) {
        try {
          check(Object.hasOwn(value, name) ? value[name] : undefined)
        } catch (error) {
          throw inside(`.${name}`, error)
        }
      }
    }
  }
}

/** An object whose values are all of one kind, whatever their names are. */
export function values(check: Check): Check {
  return (value) => {
    demand(is_object(value), "an object")
    Object.values(value).forEach(check)
  }
}

function is_object(value: unknown): value is Record<string, unknown> {
  return typeof value == "object" && value != null && !Array.isArray(value)
}
