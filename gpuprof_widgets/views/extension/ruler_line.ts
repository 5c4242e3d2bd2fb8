import {button, element} from "./element"
import {format_moment, format_ns} from "./engine"
import type {Mark, Ruler} from "./ruler"

/** What is measured, in words, to the nanosecond. It lies over the time axis, whose place it takes while it is there. */
export class RulerLine {
  private readonly words = element("span", {class: "words", role: "status", "aria-label": "Measured"})
  private readonly brush = button("Make it the range", {title: "Make the measured time the range (r)"}, () => this.ruler.brush())
  readonly el = element("div", {class: "ruler", hidden: true}, this.words, this.brush,
    button("×", {"aria-label": "End the measurement", title: "End the measurement (Escape)"}, () => this.ruler.stop()))

  constructor(private readonly ruler: Ruler) {}

  update(): void {
    const {ruler: {is_on, marks, measured}} = this
    this.el.hidden = !is_on && marks.length == 0
    this.brush.hidden = measured == null
    this.words.replaceChildren(...marks.length == 2 ? difference(marks[0], marks[1]) : is_on ? guide(marks) : [])
    this.words.title = this.words.textContent
    this.words.ariaLive = is_on ? "off" : "polite" // what follows the pointer is not read out
  }
}

function guide([first]: Mark[]): (Node | string)[] {
  return first == null ? ["Measure: click two points or drag between them; the ends snap to events near them."]
    : [element("b", {}, "From "), ...words_of(first), ". Now click the other point, or press m on another event."]
}

function difference(first: Mark, second: Mark): (Node | string)[] {
  const ns = Math.round(second.ns - first.ns)
  const exact = ns < 1000 ? "" : ` (${ns.toLocaleString("en")}\u00a0ns)`
  return [element("b", {}, format_ns(ns)), `${exact} from `, ...words_of(first), " to ", ...words_of(second)]
}

function words_of({store: {data, label, linked}, ns, edge}: Mark): (Node | string)[] {
  const moment = format_moment(ns, 1, data.header.tick_ns)
  const trace = linked.stores.length > 1 ? `${label}: ` : ""
  return edge == null ? [moment] : [`the ${edge.side} of `, element("code", {}, trace + data.name(edge.row)), ` at ${moment}`]
}

export const RULER_CSS = `
.ruler {
  position: absolute; inset: 0 0 auto; z-index: 3; display: flex; align-items: center; gap: 6px; box-sizing: border-box; white-space: nowrap;
  background: var(--gp-background, #fff); color: var(--gp-foreground, #212121);
  font: 12px/1.4 var(--jp-ui-font-family, system-ui, sans-serif); font-variant-numeric: tabular-nums;
}
.ruler[hidden], .ruler [hidden] { display: none; }
.ruler .words { min-width: 0; overflow: hidden; text-overflow: ellipsis; }
.ruler code { display: inline-block; max-width: 22ch; overflow: hidden; text-overflow: ellipsis; vertical-align: bottom; font: 12px/1.4 var(--jp-code-font-family, ui-monospace, monospace); }
.ruler button { flex: none; font: inherit; color: inherit; background: none; border: 1px solid var(--gp-edge, #949494); border-radius: 4px; padding: 0 6px; cursor: pointer; }
.ruler button:hover { background: var(--gp-band, #eee); }
.ruler button:focus-visible { outline: 2px solid var(--gp-accent, #005ea2); outline-offset: 1px; }
`
