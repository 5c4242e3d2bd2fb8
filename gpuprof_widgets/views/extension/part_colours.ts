import {OKABE_ITO} from "./categories"
import type {RGB} from "./colour"
import {css, ink_on, mix} from "./colour"

/** Colours of what a time was spent on: work in full, waiting hatched by lightness; by words that occur in the name. */
const KNOWN: [RegExp, RGB][] = [
  [/input|data ?load/i, OKABE_ITO.vermillion],
  [/synchroni/i, OKABE_ITO.orange],
  [/python/i, OKABE_ITO.purple],
  [/launch/i, OKABE_ITO.yellow],
  [/cpu/i, OKABE_ITO.sky],
  [/comm|collective|nccl/i, mix(OKABE_ITO.purple, OKABE_ITO.blue, 0.5)],
  [/copy|memcpy/i, OKABE_ITO.blue],
  [/memset/i, mix(OKABE_ITO.blue, [255, 255, 255], 0.55)],
  [/comput|kernel/i, OKABE_ITO.green],
  [/idle|other|rest/i, OKABE_ITO.grey],
]

/** Fill and ink of each part, in their order; parts that look alike by name are told apart by their lightness. */
export function part_colours(parts: string[]): Map<string, {fill: string, ink: string}> {
  const all = Object.values(OKABE_ITO)
  const used: string[] = []
  return new Map(parts.map((part, i) => {
    let fill = KNOWN.find(([pattern]) => pattern.test(part))?.[1] ?? all[i % all.length]
    while (used.includes(css(fill))) {
      fill = mix(fill, [255, 255, 255], 0.35)
    }
    used.push(css(fill))
    return [part, {fill: css(fill), ink: css(ink_on(fill))}]
  }))
}
