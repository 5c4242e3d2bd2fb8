import {format_ns} from "./engine"

/** A difference of times, always with its sign. */
export function signed_ns(ns: number): string {
  return `${ns < 0 ? "−" : "+"}${format_ns(Math.abs(ns))}`
}
