import type {BBox} from "@bokehjs/core/util/bbox"

import {button, element} from "./element"
import {ROW_HEIGHT} from "./track_layout"
import type {Lane, TrackLayout} from "./track_layout"

const SCROLLBAR = 14

/** Track names beside the bars, as real buttons that fold their track, and the scroll bar. */
export class Gutter {
  private readonly list = element("div", {class: "names"})
  readonly box = element("div", {class: "gutter", role: "group", "aria-label": "Tracks"}, this.list)
  private readonly spacer = element("div", {style: "width:1px"})
  readonly bar = element("div", {class: "scroll", "aria-hidden": "true", tabindex: -1}, this.spacer)

  constructor(
    private readonly on_fold: (track: number) => void,
    private readonly on_focus: (top: number, height: number) => void,
    on_scroll: (top: number) => void,
  ) {
    this.bar.addEventListener("scroll", () => on_scroll(this.bar.scrollTop))
    this.box.addEventListener("scroll", () => { this.box.scrollTop = 0 })
  }

  private names: {el: HTMLElement, lane: Lane}[] = []

  fill({lanes, headings, height}: TrackLayout): void {
    const focused = this.box.getRootNode() instanceof ShadowRoot
      ? (this.box.getRootNode() as ShadowRoot).activeElement?.getAttribute("data-track") ?? null : null
    this.spacer.style.height = `${height}px`
    this.names = lanes.map((lane) => ({lane, el: this.name_of(lane)}))
    this.list.replaceChildren(
      ...headings.map(({text, top}) => element("div", {class: "group", style: `top:${top + 1}px`, title: text}, text)),
      ...this.names.map(({el}) => el))
    if (focused != null) {
      this.list.querySelector<HTMLElement>(`[data-track="${focused}"]`)?.focus({preventScroll: true})
    }
  }

  private name_of(lane: Lane): HTMLElement {
    const style = `top:${lane.top}px;max-height:${lane.height}px`
    if (!lane.foldable) {
      return element("div", {style: `${style};padding-left:14px`, title: lane.label}, lane.label)
    }
    const title = `${lane.label}: ${lane.folded ? "show all" : "fold"} ${lane.depths} levels`
    const attributes = {style, title, "aria-expanded": String(!lane.folded), "data-track": lane.track, class: "tall"}
    const el = button(`${lane.folded ? "▸" : "▾"} ${lane.label}`, attributes, () => this.on_fold(lane.track))
    el.addEventListener("focus", () => {
      if (el.matches(":focus-visible")) {
        this.on_focus(lane.top, ROW_HEIGHT)
      }
    })
    return el
  }

  /** Puts the scroll bar beside the plot, whose tracks are scrolled so far, and the names to their tracks. */
  place({left, top, width, height}: BBox, plot_width: number, scroll: number): void {
    const overflows = this.spacer.offsetHeight > height + 1
    const right = Math.min(left + width, plot_width - SCROLLBAR)
    this.bar.style.cssText = `top:${top}px;left:${right}px;height:${height}px;visibility:${overflows ? "visible" : "hidden"}`
    this.list.style.transform = `translateY(${-scroll}px)`
    this.keep_in_view(scroll)
    if (Math.abs(this.bar.scrollTop - scroll) >= 1) {
      this.bar.scrollTop = scroll
    }
  }

  /** The name of a track stays in view as long as any of the track does. */
  private keep_in_view(scroll: number): void {
    for (const {el, lane} of this.names) {
      const shift = Math.max(0, Math.min(scroll - lane.top, lane.height - ROW_HEIGHT))
      el.style.transform = shift == 0 ? "" : `translateY(${shift}px)`
    }
  }
}
