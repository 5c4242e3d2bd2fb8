/**
 * Numbers as people read them, exactly as analyses/columns.py writes them, but for the spaces: no line breaks between a
 * number and its unit, and the decimals of moments stand in groups of three. `plain` takes both back.
 */

import type {Cell, Unit} from "./header"

type Units = readonly (readonly [size: number, unit: string])[]

const TIMES: Units = [[1, "ns"], [1e3, "µs"], [1e6, "ms"], [1e9, "s"]]
const SIZES: Units = [[1, "B"], [2**10, "KiB"], [2**20, "MiB"], [2**30, "GiB"], [2**40, "TiB"]]
const RATES: Units = [[1, "B/s"], [1e3, "kB/s"], [1e6, "MB/s"], [1e9, "GB/s"], [1e12, "TB/s"]]
const FLOPS: Units = [[1, "FLOP"], [1e3, "kFLOP"], [1e6, "MFLOP"], [1e9, "GFLOP"], [1e12, "TFLOP"]]

/** A time in ns, as `12.3 ms`; whole nanoseconds below one microsecond. */
export function format_ns(ns: number): string {
  return format(ns, TIMES)
}

/** A moment of the trace (ns), as `12.604 031 s`: to the nanosecond, or a longer tick (ns), without groups of zeros at the end. */
export function format_moment(ns: number, tick: number = 1): string {
  return moment_in(ns, time_unit(ns), power_of_ten(tick)).replace(ZEROS, "")
}

/** Moments (ns) on an axis, all in the unit of the largest, with as many decimals as tell neighbours apart. */
export function format_ticks(moments: number[]): string[] {
  const unit = time_unit(Math.max(...moments.map(Math.abs)))
  const apart = moments.length > 1 ? Math.abs(moments[1] - moments[0]) : unit[0]
  return moments.map((ns) => ns == 0 ? "0" : moment_in(ns, unit, power_of_ten(apart)))
}

/** The largest unit in which a time is at least one. */
function time_unit(ns: number): Units[number] {
  return [...TIMES].reverse().find(([size]) => Math.abs(ns) >= size) ?? TIMES[0]
}

/** Writes a moment to the place of `step`, a power of ten (ns). */
function moment_in(ns: number, [size, unit]: Units[number], step: number): string {
  const decimals = Math.max(0, Math.round(Math.log10(size / step)))
  return `${grouped((ns / size).toFixed(decimals))}${NO_BREAK}${unit}`
}

function power_of_ten(value: number): number {
  return 10**Math.floor(Math.log10(Math.max(value, 1)) + 1e-9)
}

/** Sets the decimals in groups of three. */
function grouped(digits: string): string {
  const [whole, decimals] = digits.split(".")
  return decimals == null ? whole : `${whole}.${decimals.replace(/\d{3}(?=\d)/g, `$&${THIN}`)}`
}

/** Stands between a number and its unit, and between groups of decimals. */
const NO_BREAK = "\u00a0"
const THIN = "\u202f"
const ZEROS = /([.\u202f]000)+(?=\u00a0)/

/** Returns a text of the page with ordinary spaces and digits, as other programs read it. */
export function plain(text: string): string {
  return text.replaceAll(THIN, "").replaceAll(NO_BREAK, " ")
}

/** A size in bytes, as `1.50 GiB`. */
export function format_bytes(size: number): string {
  return format(size, SIZES)
}

/** Bytes per second, as `450 GB/s`: decimal, as in data sheets and nccl-tests. */
export function format_bandwidth(bytes_per_s: number): string {
  return format(bytes_per_s, RATES)
}

/** A number of floating point operations, as `2.71 MFLOP`. */
export function format_flops(flops: number): string {
  return format(flops, FLOPS)
}

/** A share of one as a percentage, as `38 %`; one decimal below ten percent. */
export function format_share(share: number): string {
  const percent = 100*share
  if (percent > 0 && percent < 0.05) {
    return `less than 0.1${NO_BREAK}%`
  }
  return `${fixed(percent, percent >= 9.95 || percent == 0 ? 0 : 1)}${NO_BREAK}%`
}

/** One time as a share of another, as `38 %`; from ten times as long on as `434x`. */
export function format_ratio(ratio: number): string {
  return ratio < 10 ? format_share(ratio) : `${Math.round(ratio).toLocaleString("en")}x`
}

/** Stands for no value, and for zero in units where that means "nothing measured". */
export const NO_VALUE = "–"
const WITH_ZERO: Unit[] = ["moment", "ratio", "address"]

/** Returns the text of a table's value, by its unit. */
export function cell_text(value: Cell, unit: Unit): string {
  if (value == null || typeof value == "string") {
    return value ?? NO_VALUE
  }
  const format = FORMATS[unit]
  return format == null ? format_number(value) : value == 0 && !WITH_ZERO.includes(unit) ? NO_VALUE : format(value)
}

const FORMATS: Partial<Record<Unit, (value: number) => string>> = {
  "ns": format_ns,
  "change": format_change,
  "bytes": format_bytes,
  "bytes/s": format_bandwidth,
  "flop": format_flops,
  "flop/s": (value) => `${format_flops(value)}/s`,
  "share": (value) => format_share(value).replace("less than ", `<${NO_BREAK}`),
  "ratio": format_ratio,
  "moment": (ns) => `${grouped((ns/1e6).toLocaleString("en", {minimumFractionDigits: 6, maximumFractionDigits: 6}))}${NO_BREAK}ms`,
  "address": (address) => `0x${address.toString(16)}`,
}

/** A count or any other number: three significant digits, whole numbers whole. */
function format_number(value: number): string {
  if (Number.isInteger(value) || Math.abs(value) >= 999.5) {
    return Number(fixed(value, 0)).toLocaleString("en")
  }
  return String(Number(fixed(value, 2 - Math.floor(Math.log10(Math.abs(value))))))
}

/** A difference of times, with its sign. */
export function format_change(ns: number): string {
  return `${ns < 0 ? "−" : ns > 0 ? "+" : ""}${format_ns(Math.abs(ns))}`
}

/** `1 call`, `320 calls`, `12,345 calls`. */
export function format_count(count: number, noun: string): string {
  const digits = String(count).replace(/\B(?=(\d{3})+$)/g, ",")
  return `${digits} ${noun}${count == 1 ? "" : "s"}`
}

/** The value in the largest unit in which it is at least one, after rounding. */
function format(value: number, units: Units): string {
  const fitting = units.filter(([size]) => Math.abs(value)/size >= 0.9995)
  const [size, unit] = fitting[fitting.length - 1] ?? units[0]
  const scaled = value/size
  const decimals = size == 1 && Number.isInteger(scaled) ? 0 : three_digits(scaled)
  return `${fixed(scaled, decimals)}${NO_BREAK}${unit}`
}

/** Decimals that give a value of up to four digits three significant ones. */
function three_digits(value: number): number {
  const magnitude = Math.abs(value)
  return magnitude < 9.995 ? 2 : magnitude < 99.95 ? 1 : 0
}

/** Like `toFixed`, but a value exactly in the middle goes to the even digit, as in Python. */
function fixed(value: number, decimals: number): string {
  const power = 10**decimals
  // Only an odd number of 1/2^(d+1) can lie exactly between two decimal fractions of d digits.
  const is_middle = Math.abs(value*2**(decimals + 1)) % 2 == 1
  if (is_middle) {
    const below = Math.floor(value*power)
    return ((below % 2 == 0 ? below : below + 1)/power).toFixed(decimals)
  }
  return value.toFixed(decimals)
}
