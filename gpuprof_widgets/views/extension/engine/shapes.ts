/** Checks of data from a file, which may have been written to harm: its shape, its numbers, and how much of it there is. */

/** What is wrong, and where in the data, as in `.names[3]`. */
type Fault = {wanted: string, place: string}

/** Returns what is wrong with a value, null where it is as it has to be. */
export type Check = (value: unknown) => Fault | null

export class DamagedData extends Error {
  constructor({wanted, place}: Fault) {
    super(`the report's data is damaged: ${place == "" ? "it" : place.replace(/^\./, "")} is not ${wanted}`)
  }
}

/** Throws a `DamagedData` where a check finds a fault. */
export function demand(check: Check, value: unknown): void {
  const fault = check(value)
  if (fault != null) {
    throw new DamagedData(fault)
  }
}

const MOST_ITEMS = 2 ** 27

function test(is_right: boolean, wanted: string): Fault | null {
  return is_right ? null : {wanted, place: ""}
}

function at(place: string, fault: Fault | null): Fault | null {
  return fault == null ? null : {...fault, place: place + fault.place}
}

export const text: Check = (value) => test(typeof value == "string", "a text")

export const flag: Check = (value) => test(typeof value == "boolean", "true or false")

export const number: Check = (value) => test(typeof value == "number" && Number.isFinite(value), "a number")

export const nothing: Check = (value) => test(value === null, "empty")

/** A whole number from `least` to below `end`. */
export function whole(least: number = -(2 ** 53), end: number = 2 ** 53): Check {
  return (value) => test(Number.isInteger(value) && Number(value) >= least && Number(value) < end, "a whole number in its range")
}

export function one_of(...choices: string[]): Check {
  return (value) => test(choices.includes(value as string), choices.join(" or "))
}

/** What one of the checks takes; the last of them says what is wrong. */
export function either(...checks: Check[]): Check {
  return (value) => {
    let fault: Fault | null = null
    for (const check of checks) {
      fault = check(value)
      if (fault == null) {
        return null
      }
    }
    return fault
  }
}

/** A list of at most, or of exactly, so many items. */
export function list(check: Check, {most = MOST_ITEMS, length}: {most?: number, length?: number} = {}): Check {
  return (value) => {
    if (!Array.isArray(value) || value.length > most || length != null && value.length != length) {
      return {wanted: length == null ? `a list of at most ${most}` : `a list of ${length}`, place: ""}
    }
    return first_fault(value, () => check)
  }
}

/** A list of as many items, each with a check of its own. */
export function tuple(...checks: Check[]): Check {
  return (value) => Array.isArray(value) && value.length == checks.length
    ? first_fault(value, (i) => checks[i])
    : {wanted: `a list of ${checks.length}`, place: ""}
}

function first_fault(items: unknown[], check_of: (i: number) => Check): Fault | null {
  for (let i = 0; i < items.length; i++) {
    const fault = check_of(i)(items[i])
    if (fault != null) {
      return at(`[${i}]`, fault)
    }
  }
  return null
}

/** An object with these fields, of which those in `optional` may be missing; others are not looked at. */
export function fields(checks: Record<string, Check>, optional: Record<string, Check> = {}): Check {
  const all = [...Object.entries(checks), ...Object.entries(optional)]
  return (value) => {
    if (!is_object(value)) {
      return {wanted: "an object", place: ""}
    }
    for (const [name, check] of all) {
      const is_there = Object.hasOwn(value, name)
      const fault = is_there || name in checks ? check(is_there ? value[name] : undefined) : null
      if (fault != null) {
        return at(`.${name}`, fault)
      }
    }
    return null
  }
}

/** An object whose values are all of one kind, whatever their names are. */
export function values(check: Check): Check {
  return (value) => is_object(value) ? first_fault(Object.values(value), () => check) : {wanted: "an object", place: ""}
}

/** A value that passes a first check, and then others that are made from it. */
export function then<T>(first: Check, rest: (value: T) => Check): Check {
  return (value) => first(value) ?? rest(value as T)(value)
}

function is_object(value: unknown): value is Record<string, unknown> {
  return typeof value == "object" && value != null && !Array.isArray(value)
}
