import {OKABE_ITO} from "./categories"
import type {RGB} from "./colour"
import {css, hex, ink_on, mix} from "./colour"

const WHITE: RGB = [255, 255, 255]
const {orange, sky, green, yellow, blue, vermillion, purple, grey} = OKABE_ITO
const slate = hex("#4A5866")
const indigo = mix(purple, blue, 0.5)

/**
 * The colour of everything that a time may have been spent on: the same in every report, whatever else is in it.
 * Names of one line are one thing under the words of several analyses; those of one bar differ.
 */
export const PART_COLOURS: Record<string, RGB> = {
  "compute": green,
  "exposed communication": indigo, "communication": indigo,
  "exposed copy": blue, "copy": blue,
  "memset": mix(blue, WHITE, 0.55),
  "input pipeline": vermillion, "data loading": vermillion, "dataloader": vermillion,
  "synchronising": orange, "synchronisation": orange, "synchronise": orange,
  "Python": purple, "python": purple,
  "CPU ops": sky, "cpu op": sky, "host": sky,
  "runtime calls": mix(orange, WHITE, 0.6), "runtime": mix(orange, WHITE, 0.6),
  "launching": yellow, "launch delay": yellow,
  "queued": slate, "kernel-to-kernel delay": slate, "device": slate,
  "stream wait (inferred)": mix(green, WHITE, 0.6),
  "start": mix(grey, WHITE, 0.6), "end": mix(grey, slate, 0.5),
  "other": grey, "unknown": grey,
}

/** Of what has no colour of its own: one that depends on its name alone. */
function colour_by_name(name: string): RGB {
  const hash = [...name].reduce((sum, letter) => (31 * sum + letter.charCodeAt(0)) % 9973, 0)
  const all = Object.values(OKABE_ITO)
  return mix(all[hash % all.length], WHITE, 0.3)
}

/** Fill and ink of a part. */
export function part_colour(name: string): {fill: string, ink: string} {
  const fill = PART_COLOURS[name] ?? colour_by_name(name)
  return {fill: css(fill), ink: css(ink_on(fill))}
}
