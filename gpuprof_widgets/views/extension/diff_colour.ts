import {OKABE_ITO} from "./categories"
import {css, ink_on, mix} from "./colour"
import type {RGB} from "./colour"
import type {Palette} from "./theme"

/** Grew and shrank: orange and blue are told apart by all common kinds of colour blindness, and by the sign in the label. */
export const GREW = OKABE_ITO.orange
export const SHRANK = OKABE_ITO.blue
/** From this change on, as a share of the longer of the two, the colour is full. */
const FULL = 0.5

/** Fill and ink of what changed by that share (-1: gone, 1: new). */
export function diff_paint(change: number, {background, foreground}: Palette): {fill: string, ink: string} {
  const neutral = mix(foreground, background, 0.86)
  const fill: RGB = change == 0 ? neutral : mix(neutral, change > 0 ? GREW : SHRANK, 0.15 + 0.85 * Math.min(1, Math.abs(change) / FULL))
  return {fill: css(fill), ink: css(ink_on(fill))}
}
