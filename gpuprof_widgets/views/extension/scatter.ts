import {cell_text, type Cell, type PanelColumn, type PanelData} from "./engine"

const HEIGHT = 300
const LEFT = 96
const RIGHT = 24
const TOP = 10
const BOTTOM = 42
const MOST_LABELS = 6
const LETTER = 6.5
const SMALL = 4
const BIG = 13

type Attributes = Record<string, string | number>
type Box = [number, number, number, number]
type Dot = {row: number, x: number, y: number, radius: number, name: string}

/** Handlers of the gestures on points. */
type PointHandlers = {
  choose(row: number, event: MouseEvent | KeyboardEvent): void
  hover(row: number, event: MouseEvent): void
  leave(): void
}

/** The rows of a panel as points over two logarithmic axes, with the panel's lines (a roof) behind them. */
export class Scatter {
  readonly el = svg("svg", {class: "points", tabindex: 0, role: "application"})
  private dots: Dot[] = []
  private under = -1

  constructor(private readonly handlers: PointHandlers) {
    this.el.addEventListener("keydown", (event) => this.key(event))
    this.el.addEventListener("blur", () => this.move_to(-1))
  }

  draw(data: PanelData, values: Cell[][], shown: number[], chosen: Set<number>, width: number): void {
    const points = data.points!
    const [x_at, y_at] = [points.x, points.y].map((key) => data.at(key))
    const number = (at: number, row: number): number => Number(values[at][row] ?? 0)
    const drawn = shown.filter((row) => number(x_at, row) > 0 && number(y_at, row) > 0)
    const lines = points.lines.map(([xs, ys, label]) => ({xs, ys, label}))
    const right = Math.max(width - RIGHT, LEFT + 50)
    // The corners of the lines are in view, their ends need not be.
    const x = new LogScale([...drawn.map((row) => number(x_at, row)), ...lines.flatMap(({xs}) => xs.slice(1, -1))], LEFT, right)
    const y = new LogScale([...drawn.map((row) => number(y_at, row)), ...lines.flatMap(({ys}) => ys.slice(1, -1))], HEIGHT - BOTTOM, TOP)
    const sizes = drawn.map((row) => points.size == "" ? 0 : number(data.at(points.size), row))
    const most = Math.max(...sizes, 0)
    this.dots = drawn.map((row, i) => ({
      row, x: x.at(number(x_at, row)), y: y.at(number(y_at, row)), name: data.row_name(row),
      radius: most == 0 ? SMALL + 1 : SMALL + (BIG - SMALL) * Math.sqrt(sizes[i] / most),
    })).sort((a, b) => b.radius - a.radius)
    if (drawn.length == 0) {
      this.draw_nothing(data.title, width)
      return
    }
    const roofs = roof_labels(lines, x, y, right)
    this.el.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`)
    this.el.setAttribute("aria-label", `${data.title}: ${drawn.length} points. Arrow keys step through them, Enter selects.`)
    this.el.replaceChildren(
      ...this.axes(x, y, data.columns[x_at], data.columns[y_at], right), ...lines.map((line) => roof(line, x, y, right)),
      ...this.dots.map((dot) => this.circle(dot, chosen.has(dot.row))), ...roofs.map(({el}) => el),
      ...this.names(chosen, width, roofs.map(({box}) => box)))
    this.mark()
  }

  /** Axes without a point would have a scale that means nothing. */
  private draw_nothing(title: string, width: number): void {
    const words = "No row has both values here."
    this.el.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`)
    this.el.setAttribute("aria-label", `${title}: no points. ${words}`)
    this.el.replaceChildren(text(words, {x: width / 2, y: HEIGHT / 2, "text-anchor": "middle"}))
  }

  private axes(x: LogScale, y: LogScale, x_column: PanelColumn, y_column: PanelColumn, right: number): SVGElement[] {
    const bottom = HEIGHT - BOTTOM
    return [
      ...x.ticks(8).flatMap((tick) => [
        svg("line", {class: "grid", x1: x.at(tick), x2: x.at(tick), y1: TOP, y2: bottom}),
        text(tick_text(tick, x_column), {x: x.at(tick), y: bottom + 15, "text-anchor": "middle"}),
      ]),
      ...y.ticks(6).flatMap((tick) => [
        svg("line", {class: "grid", x1: LEFT, x2: right, y1: y.at(tick), y2: y.at(tick)}),
        text(tick_text(tick, y_column), {x: LEFT - 6, y: y.at(tick) + 4, "text-anchor": "end"}),
      ]),
      text(x_column.label, {x: (LEFT + right) / 2, y: HEIGHT - 8, "text-anchor": "middle"}),
      text(y_column.label, {x: 12, y: (TOP + bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(TOP + bottom) / 2})`}),
    ]
  }

  private circle({row, x, y, radius}: Dot, chosen: boolean): SVGElement {
    const circle = svg("circle", {cx: x, cy: y, r: radius, class: chosen ? "chosen" : "", "data-row": row})
    circle.addEventListener("click", (event) => this.handlers.choose(row, event))
    circle.addEventListener("pointermove", (event) => this.handlers.hover(row, event))
    circle.addEventListener("pointerleave", () => this.handlers.leave())
    return circle
  }

  /** Names beside the selected and the largest points, where there is room for them. */
  private names(chosen: Set<number>, width: number, taken: Box[]): SVGElement[] {
    const boxes = [...taken]
    const wanted = [...this.dots].sort((a, b) => Number(chosen.has(b.row)) - Number(chosen.has(a.row)) || b.radius - a.radius)
    return wanted.slice(0, MOST_LABELS + chosen.size).flatMap(({row, x, y, radius, name}) => {
      const short = name.length > 32 ? `${name.slice(0, 31)}…` : name
      const length = short.length * LETTER
      const sides = [x + radius + 4, x - radius - 4 - length].filter((left) => left > LEFT && left + length < width - RIGHT)
      const boxes_of_sides = sides.map((left): Box => [left, y - 7, left + length, y + 7])
      const obstacles = chosen.has(row) ? boxes : [...boxes, ...this.dots.filter((dot) => dot.row != row).map(box_of)]
      const box = boxes_of_sides.find((side) => !obstacles.some((other) => overlap(side, other)))
      if (box == null) {
        return []
      }
      boxes.push(box)
      const [left] = box
      const on_left = left < x
      return [text(short, {class: "label", x: on_left ? x - radius - 4 : left, y: y + 4, "text-anchor": on_left ? "end" : "start"})]
    })
  }

  private key(event: KeyboardEvent): void {
    const by_x = [...this.dots].sort((a, b) => a.x - b.x || a.y - b.y)
    const at = by_x.findIndex(({row}) => row == this.under)
    const to = {ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: by_x.length - 1}[event.key]
    if (to != null) {
      this.move_to(by_x[Math.max(0, Math.min(to, by_x.length - 1))]?.row ?? -1)
    } else if ((event.key == "Enter" || event.key == " ") && this.under >= 0) {
      this.handlers.choose(this.under, event)
    } else {
      return
    }
    event.preventDefault()
    event.stopPropagation()
  }

  private move_to(row: number): void {
    this.under = row
    this.mark()
  }

  /** The point under the keyboard's cursor, with its name. */
  private mark(): void {
    this.el.querySelector("text.under")?.remove()
    for (const circle of this.el.querySelectorAll("circle")) {
      circle.classList.toggle("under", Number(circle.dataset.row) == this.under)
    }
    const dot = this.dots.find(({row}) => row == this.under)
    if (dot != null) {
      this.el.append(text(dot.name, {class: "label under", x: dot.x, y: Math.max(dot.y - dot.radius - 5, 12), "text-anchor": "middle"}))
    }
  }
}

type Roof = {xs: number[], ys: number[], label: string}

/** Returns a line; its ends may lie outside of the drawn area. */
function roof({xs, ys}: Roof, x: LogScale, y: LogScale, right: number): SVGElement {
  const [width, height] = [right - LEFT, HEIGHT - BOTTOM - TOP]
  const frame = svg("svg", {x: LEFT, y: TOP, width, height, viewBox: `${LEFT} ${TOP} ${width} ${height}`})
  frame.append(svg("polyline", {class: "roof", points: xs.map((value, i) => `${x.at(value)},${y.at(ys[i])}`).join(" ")}))
  return frame
}

/** The names of the lines along them, the highest line first; one that would lie over another is left out. */
function roof_labels(lines: Roof[], x: LogScale, y: LogScale, right: number): {el: SVGElement, box: Box}[] {
  const placed: {el: SVGElement, box: Box}[] = []
  for (const {xs, ys, label} of [...lines].sort((a, b) => Math.max(...b.ys) - Math.max(...a.ys))) {
    const path = xs.map((value, i) => [x.at(value), y.at(ys[i])])
    const [at, height] = path.reverse().find(([left, top]) => left >= LEFT && left <= right && top >= TOP && top <= HEIGHT - BOTTOM)
      ?? [right, TOP + 20]
    const on_left = at > (LEFT + right) / 2
    const [left, base] = [on_left ? at - 4 - label.length * LETTER : at + 4, Math.max(height - 6, TOP + 10)]
    const box: Box = [left, base - 11, left + label.length * LETTER, base + 3]
    if (!placed.some((other) => overlap(box, other.box))) {
      placed.push({el: text(label, {class: "label", x: on_left ? at - 4 : left, y: base, "text-anchor": on_left ? "end" : "start"}), box})
    }
  }
  return placed
}

function overlap(a: Box, b: Box): boolean {
  return a[0] < b[2] && a[2] > b[0] && a[1] < b[3] && a[3] > b[1]
}

function box_of({x, y, radius}: Dot): Box {
  return [x - radius, y - radius, x + radius, y + radius]
}

/** Returns a round value without the zeros behind its decimal point. */
function tick_text(value: number, {unit}: PanelColumn): string {
  return cell_text(value, unit).replace(/\.0+(?=\D|$)/, "")
}

function svg<K extends keyof SVGElementTagNameMap>(tag: K, attributes: Attributes): SVGElementTagNameMap[K] {
  const el = document.createElementNS("http://www.w3.org/2000/svg", tag)
  for (const [name, value] of Object.entries(attributes)) {
    el.setAttribute(name, String(value))
  }
  return el
}

function text(words: string, attributes: Attributes): SVGTextElement {
  const el = svg("text", attributes)
  el.textContent = words
  return el
}

/** A logarithmic axis: values above zero over a number of pixels. */
class LogScale {
  private readonly low: number
  private readonly high: number

  constructor(values: number[], private readonly from: number, private readonly to: number) {
    const logarithms = values.filter((value) => value > 0 && Number.isFinite(value)).map(Math.log10)
    const low = logarithms.reduce((least, value) => Math.min(least, value), Infinity)
    const high = logarithms.reduce((most, value) => Math.max(most, value), -Infinity)
    // A margin, so that no point lies on the edge, and at least a decade.
    const margin = Math.max((high - low) * 0.06, (1 - (high - low)) / 2, 0.05)
    this.low = logarithms.length == 0 ? 0 : low - margin
    this.high = logarithms.length == 0 ? 1 : high + margin
  }

  at(value: number): number {
    return this.from + (Math.log10(value) - this.low) / (this.high - this.low) * (this.to - this.from)
  }

  /** Powers of ten, with 2 and 5 of them where there are few, or only some of them where there are many. */
  ticks(most: number): number[] {
    const decades = Math.floor(this.high) - Math.ceil(this.low) + 1
    const step = Math.max(1, Math.ceil(decades / most))
    const ticks = []
    for (let power = Math.floor(this.low); power <= this.high; power++) {
      for (const digit of decades <= 2 ? [1, 2, 5] : [1]) {
        const tick = digit * 10 ** power
        if (Math.log10(tick) >= this.low && Math.log10(tick) <= this.high && power % step == 0) {
          ticks.push(tick)
        }
      }
    }
    return ticks
  }
}
