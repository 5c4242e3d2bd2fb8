import {element} from "./element"
import {format_share} from "./engine"
import type {PanelData, PanelValue} from "./engine"
import {panel_text} from "./panel_text"
import {part_colours} from "./part_colours"

type Part = {row: number, name: string, value: number}

/** What the bars answer to: a click on a part, and the pointer over it. */
export type PartHandlers = {
  choose(row: number, event: MouseEvent): void
  hover(title: string, words: string, event: MouseEvent): void
  leave(): void
}

/** One bar per group, stacked of its parts, all on one scale; the table has the same in words. */
export function stacked_bars(
  data: PanelData, values: PanelValue[][], shown: number[], chosen: Set<number>, handlers: PartHandlers,
): HTMLElement[] {
  const {bars} = data
  if (bars == null) {
    return []
  }
  const [group_at, part_at, value_at] = [bars.group, bars.part, bars.value].map((key) => data.at(key))
  const {unit} = data.columns[value_at]
  const names = [...new Set(Array.from({length: data.length}, (_, row) => String(values[part_at][row])))]
  const colours = part_colours(names)
  const groups = new Map<string, Part[]>()
  for (const row of [...shown].sort((a, b) => a - b)) {
    const group = panel_text(values[group_at][row], data.columns[group_at].unit)
    groups.set(group, [...groups.get(group) ?? [], {row, name: String(values[part_at][row]), value: Number(values[value_at][row] ?? 0)}])
  }
  const totals = [...groups.values()].map((parts) => parts.reduce((sum, {value}) => sum + value, 0))
  const most = Math.max(...totals, 0)
  const cells = [...groups].flatMap(([group, parts], i) => {
    const stack = parts.filter(({value}) => value > 0).map(({row, name, value}) => {
      const {fill, ink} = colours.get(name)!
      const share = value / most
      const words = `${panel_text(value, unit)} (${format_share(value / totals[i])})`
      const part = element("span", {
        class: "part", style: `width:${100 * share}%;background:${fill};color:${ink}`, "aria-selected": chosen.has(row) ? "true" : null, "data-row": row,
      }, share > 0.08 ? format_share(value / totals[i]) : "")
      part.addEventListener("click", (event) => handlers.choose(row, event))
      part.addEventListener("pointermove", (event) => handlers.hover(`${group}: ${name}`, words, event))
      part.addEventListener("pointerleave", () => handlers.leave())
      return part
    })
    return [
      element("div", {class: "group clip", title: group}, group), element("div", {class: "stack"}, ...stack),
      element("div", {class: "number muted"}, panel_text(totals[i], unit)),
    ]
  })
  const used = new Set(shown.filter((row) => Number(values[value_at][row]) > 0).map((row) => String(values[part_at][row])))
  const legend = names.filter((name) => used.has(name)).map((name) =>
    element("li", {}, element("span", {class: "swatch", style: `background:${colours.get(name)!.fill}`}), name))
  return most == 0 ? [] : [
    element("ul", {class: "legend", "aria-label": `Colours of ${data.title}`}, ...legend),
    element("div", {class: "bars", role: "group", "aria-label": `${data.title} as bars`}, ...cells),
  ]
}
