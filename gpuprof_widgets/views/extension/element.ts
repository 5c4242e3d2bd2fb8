import {scroll_port} from "./scroll_port"
import {listen_weakly} from "./weak_listener"

type Attributes = Record<string, string | number | boolean | null>

/** Makes an element. Children that are strings become text nodes: a name from a trace is never markup. */
export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K, attributes: Attributes = {}, ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const el = document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) {
      el.setAttribute(name, "")
    } else if (value !== false && value != null) {
      el.setAttribute(name, String(value))
    }
  }
  el.append(...children)
  return el
}

export function button(text: string, attributes: Attributes, on_click: (event: MouseEvent) => void): HTMLButtonElement {
  const el = element("button", {type: "button", ...attributes}, text)
  el.addEventListener("click", on_click)
  return el
}

/** Names stand between backticks in a finding; here they are set as code. */
export function with_code(text: string): (Node | string)[] {
  return text.split("`").map((part, i) => i % 2 == 1 ? element("code", {}, part) : part.replace(BEFORE_UNIT, "\u00a0"))
}

/** The space between a number and its unit: a line never ends there. */
const BEFORE_UNIT = /(?<=\d) (?=(?:[nµm]?s|%|[kKMGT]?i?B)(?![a-z]))/g

/** A labelled choice among a few values. */
export function choice(label: string, options: [string, string][], value: string, on_change: (value: string) => void): HTMLLabelElement {
  const select = element("select", {}, ...options.map(([key, text]) =>
    element("option", {value: key, selected: key == value}, text)))
  select.addEventListener("change", () => on_change(select.value))
  return element("label", {class: "choice"}, `${label} `, select)
}

/** A button that reads the text of a search box as a regular expression while it is pressed. */
export function regex_button(noun: string, on_change: (as_regex: boolean) => void): HTMLButtonElement {
  const title = `Read the ${noun} as a regular expression`
  const el = button(".*", {title, "aria-label": "Regular expression", "aria-pressed": "false"}, () => {
    const as_regex = el.getAttribute("aria-pressed") == "false"
    el.setAttribute("aria-pressed", String(as_regex))
    on_change(as_regex)
  })
  return el
}

/** A list of colours with their meanings. */
export function legend(label: string, entries: [colour: string, meaning: string][]): HTMLUListElement {
  return element("ul", {class: "legend", "aria-label": label}, ...legend_items(entries))
}

export function legend_items(entries: [colour: string, meaning: string][]): HTMLLIElement[] {
  return entries.map(([colour, meaning]) =>
    element("li", {}, element("span", {class: "swatch", style: `background:${colour}`}), meaning))
}

export type Fact = [label: string, value: string]

const GAP = 14

/** What a tooltip leaves uncovered: the heights of what it explains, and all below `floor`; pixels of the window. */
export type Uncovered = {top: number, bottom: number, floor?: number}

/** A box next to the pointer. It floats over the report: nothing moves when it is shown. Keys and scrolling hide it. */
export class Tooltip {
  private readonly el = element("div", {class: "gp-tooltip", role: "tooltip", hidden: true})
  private readonly style = element("style", {}, TOOLTIP_CSS)
  private readonly listening: AbortController[]

  constructor(private readonly host: HTMLElement, root: ShadowRoot | HTMLElement) {
    root.append(this.style, this.el)
    this.listening = OUTDATED_BY.map((type) => listen_weakly(window, type, this, hide, true))
  }

  show(title: string, facts: Fact[], client_x: number, client_y: number, uncovered: Uncovered = {top: client_y, bottom: client_y}): void {
    const list = element("dl", {}, ...facts.flatMap(([label, value]) =>
      [element("dt", {}, label), element("dd", {}, value)]))
    this.el.replaceChildren(element("b", {}, title), list)
    this.el.hidden = false
    this.place(client_x, uncovered)
  }

  hide(): void {
    this.el.hidden = true
  }

  remove(): void {
    this.listening.forEach((listening) => listening.abort())
    this.el.remove()
    this.style.remove()
  }

  /** Puts the box below what it explains, above where there is no room below, beside the pointer where the report has room. */
  private place(client_x: number, {top, bottom, floor = Infinity}: Uncovered): void {
    const host = this.host.getBoundingClientRect()
    const {width, height} = this.el.getBoundingClientRect()
    const port = scroll_port(this.el)
    const right = Math.min(host.right, window.innerWidth)
    const left = client_x + GAP + width <= right ? client_x + GAP : client_x - GAP - width
    const above = top - GAP - height
    const fits_below = bottom + GAP + height <= Math.min(floor, host.bottom, port.bottom)
    this.el.style.left = `${Math.max(0, left - host.left)}px`
    this.el.style.top = `${(fits_below || above < Math.max(port.top, host.top) ? bottom + GAP : above) - host.top}px`
  }
}

/** After these the box would explain what is no longer there. */
const OUTDATED_BY = ["keydown", "scroll", "resize"]

function hide(tooltip: Tooltip): void {
  tooltip.hide()
}

const TOOLTIP_CSS = `
.gp-tooltip {
  position: absolute; z-index: 20; pointer-events: none; box-sizing: border-box; max-width: min(520px, 90%);
  padding: 6px 9px; border-radius: 5px; border: 1px solid var(--gp-line, #ccc);
  background: var(--gp-background, #fff); color: var(--gp-foreground, #212121);
  font: 12px/1.4 var(--jp-ui-font-family, system-ui, sans-serif); box-shadow: 0 2px 8px rgb(0 0 0 / 25%);
}
.gp-tooltip[hidden] { display: none; }
.gp-tooltip b { display: block; overflow-wrap: anywhere; }
.gp-tooltip dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0 10px; margin: 3px 0 0; }
.gp-tooltip dt { color: var(--gp-muted, #595959); }
.gp-tooltip dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; max-height: 2.8em; overflow: hidden; }
`
