import {element} from "./element"
import {cell_text, format_share} from "./engine"
import type {Cell, PanelData} from "./engine"
import {part_colour} from "./part_colours"

/** Pixels that a bar has at least, and that a letter takes: what fits is written into the parts. */
const ROOM = 700
const LETTER = 6.5

/** Rows of one group and part are one part of a bar. */
type Part = {rows: number[], name: string, value: number}

/** What the bars answer to: a click on a part, and the pointer over it. */
export type PartHandlers = {
  choose(rows: number[], event: MouseEvent): void
  hover(title: string, words: string, event: MouseEvent): void
  leave(): void
}

/** One bar per group, stacked of its parts, all on one scale; the table has the same in words. */
export function stacked_bars(
  data: PanelData, values: Cell[][], shown: number[], chosen: Set<number>, handlers: PartHandlers,
): HTMLElement[] {
  const {bars} = data
  if (bars == null) {
    return []
  }
  const [group_at, part_at, value_at] = [bars.group, bars.part, bars.value].map((key) => data.at(key))
  const {unit} = data.columns[value_at]
  const names = [...new Set(Array.from({length: data.length}, (_, row) => String(values[part_at][row])))]
  const groups = new Map<string, Part[]>()
  for (const row of [...shown].sort((a, b) => a - b)) {
    const group = group_at < 0 ? data.title : cell_text(values[group_at][row], data.columns[group_at].unit)
    const parts = groups.get(group) ?? names.map((name): Part => ({rows: [], name, value: 0}))
    const part = parts[names.indexOf(String(values[part_at][row]))]
    part.rows.push(row)
    part.value += Number(values[value_at][row] ?? 0)
    groups.set(group, parts)
  }
  const totals = [...groups.values()].map((parts) => parts.reduce((sum, {value}) => sum + value, 0))
  const most = Math.max(...totals, 0)
  const cells = [...groups].flatMap(([group, parts], i) => {
    const stack = parts.filter(({value}) => value > 0).map(({rows, name, value}) => {
      const {fill, ink} = part_colour(name)
      const share = value / most
      const percent = format_share(value / totals[i])
      const words = `${cell_text(value, unit)} (${percent})`
      const inside = share * ROOM > name.length * LETTER + 40 ? `${name} ${percent}` : share * ROOM > 40 ? percent : ""
      const part = element("span", {
        class: "part", style: `width:${100 * share}%;background:${fill};color:${ink}`, "aria-selected": rows.some((row) => chosen.has(row)) ? "true" : null,
      }, inside)
      part.addEventListener("click", (event) => handlers.choose(rows, event))
      part.addEventListener("pointermove", (event) => handlers.hover(`${group}: ${name}`, words, event))
      part.addEventListener("pointerleave", () => handlers.leave())
      return part
    })
    return [
      element("div", {class: "group clip", title: group}, group), element("div", {class: "stack"}, ...stack),
      element("div", {class: "number muted"}, cell_text(totals[i], unit)),
    ]
  })
  const used = new Set(shown.filter((row) => Number(values[value_at][row]) > 0).map((row) => String(values[part_at][row])))
  const legend = names.filter((name) => used.has(name)).map((name) =>
    element("li", {}, element("span", {class: "swatch", style: `background:${part_colour(name).fill}`}), name))
  return most == 0 ? [] : [
    element("ul", {class: "legend", "aria-label": `Colours of ${data.title}`}, ...legend),
    element("div", {class: "bars", role: "group", "aria-label": `${data.title} as bars`}, ...cells),
  ]
}
