import type {BBox} from "@bokehjs/core/util/bbox"

import {element} from "./element"
import {x_near_view} from "./paint"
import type {Theme} from "./theme"

/** The brushed range over a plot. It is no ink on the canvas: a brush would repaint every plot, with its axes. */
export class RangeBand {
  private readonly shade = element("div", {class: "shade"})
  private readonly edges = [element("div", {class: "edge"}), element("div", {class: "edge"})]
  readonly el = element("div", {class: "range-band", "aria-hidden": "true"}, this.shade, ...this.edges)

  /** `shown`: the range under a drag or the brushed one (ns). */
  constructor(private readonly shown: {draft: [number, number] | null, window: [number, number] | null, theme: Theme}) {}

  /** Follows the range, over a frame that shows some time (ns). */
  place({left, top, width, height}: BBox, {start, end}: {start: number, end: number}): void {
    const {shown: {draft, window, theme}, el, shade, edges} = this
    const range = draft ?? window
    el.hidden = range == null
    if (range != null) {
      const [x0, x1] = range.map((ns) => x_near_view(ns, {start, end, width}))
      el.style.cssText = `left:${left}px;top:${top}px;width:${width}px;height:${height}px`
      el.dataset.scheme = theme.palette.dark ? "dark" : "light"
      shade.style.cssText = `left:${x0}px;width:${x1 - x0}px`
      edges.forEach((edge, i) => { edge.style.left = `${[x0, x1][i]}px` })
    }
  }
}

/** The colour is mixed into what lies below: black letters stay black, white ones on dark stay white. */
export const RANGE_BAND_CSS = `
.range-band { position: absolute; overflow: hidden; pointer-events: none; }
.range-band[hidden] { display: none; }
.range-band > div { position: absolute; top: 0; bottom: 0; forced-color-adjust: none; }
.range-band .shade { background: var(--gp-accent, #005ea2); opacity: 0.12; mix-blend-mode: multiply; }
.range-band[data-scheme=dark] .shade { opacity: 0.2; mix-blend-mode: screen; }
.range-band .edge {
  box-sizing: border-box; width: 4px; margin-left: -2px; background: var(--gp-accent, #005ea2);
  border: solid var(--gp-background, #fff); border-width: 0 1px;
}
`
