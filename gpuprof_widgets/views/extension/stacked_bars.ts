import {OKABE_ITO, painted} from "./categories"
import {css, hex, mix, type RGB} from "./colour"
import {element, legend} from "./element"
import {cell_text, format_share, type Cell, type PanelData} from "./engine"

/** Pixels of a bar, at least, and of a letter: texts are written into the parts where they fit. */
const ROOM = 700
const LETTER = 6.5

/** Bars below each other without a scroll bar, which the keyboard has to reach. */
const ROWS_WITHOUT_SCROLLING = 15

/** Rows of one group and part are one part of a bar. */
type Part = {rows: number[], name: string, value: number}

/** Handlers of a click on a part and of the pointer over it. */
type PartHandlers = {
  choose(rows: number[], event: MouseEvent): void
  hover(title: string, words: string, event: MouseEvent): void
  leave(): void
}

/** One bar per group, stacked of its parts, all on one scale; the table has the same in words. */
export function stacked_bars(
  data: PanelData, values: Cell[][], shown: number[], chosen: Set<number>, background: RGB, handlers: PartHandlers,
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
      const {fill, ink, outline} = painted(part_colour(name), background)
      const share = value / most
      const percent = format_share(value / totals[i])
      const words = `${cell_text(value, unit)} (${percent})`
      const inside = share * ROOM > name.length * LETTER + 40 ? `${name} ${percent}` : share * ROOM > 40 ? percent : ""
      const part = element("span", {
        class: "part", style: `width:calc(${100 * share}% - 1px);background:${fill};color:${ink};${outline == null ? "" : `border:1px solid ${outline}`}`, "aria-selected": rows.some((row) => chosen.has(row)) ? "true" : null,
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
  const colours = names.filter((name) => used.has(name)).map((name): [string, string] => [css(part_colour(name)), name])
  return most == 0 ? [] : [
    legend(`Colours of ${data.title}`, colours),
    element("div", {class: "bars", role: "group", "aria-label": `${data.title} as bars`, tabindex: groups.size > ROWS_WITHOUT_SCROLLING ? 0 : null}, ...cells),
  ]
}

const WHITE: RGB = [255, 255, 255]
const {orange, sky, green, yellow, blue, vermillion, purple, grey} = OKABE_ITO
const slate = hex("#4A5866")
const indigo = mix(purple, blue, 0.5)

/**
 * The colour of everything that a time may have been spent on: the same in every report, whatever else is in it.
 * Names of one line are one thing under the words of several analyses; those of one bar differ.
 */
const PART_COLOURS: Record<string, RGB> = {
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

/** Returns a colour for a name without one of its own: it depends on the name alone. */
function colour_by_name(name: string): RGB {
  const hash = [...name].reduce((sum, letter) => (31 * sum + letter.charCodeAt(0)) % 9973, 0)
  const all = Object.values(OKABE_ITO)
  return mix(all[hash % all.length], WHITE, 0.3)
}

function part_colour(name: string): RGB {
  return Object.hasOwn(PART_COLOURS, name) ? PART_COLOURS[name] : colour_by_name(name)
}
