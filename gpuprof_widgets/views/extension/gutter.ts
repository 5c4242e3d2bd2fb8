import type {BBox} from "@bokehjs/core/util/bbox"

import {button, element} from "./element"
import {ROW_HEIGHT, type Lane, type TrackLayout} from "./tracks"

const SCROLLBAR = 14
/** Height of a line of a name; lower tracks have names of one line. */
const LINE_HEIGHT = 15

/** What the names of the tracks and the scroll bar do. */
export type TrackActions = {
  fold(track: number): void
  scroll_into_view(lane: Lane): void
  scroll_to(top: number): void
}

/** The names of the tracks, as real buttons that fold them, and the scroll bar. */
export class Gutter {
  private readonly list = element("div", {class: "names"})
  readonly box = element("div", {class: "gutter", role: "group", "aria-label": "Tracks"}, this.list)
  private readonly spacer = element("div", {style: "width:1px"})
  readonly bar = element("div", {class: "scroll", "aria-hidden": "true", tabindex: -1}, this.spacer)
  private names: {el: HTMLElement, lane: Lane}[] = []
  /** The track whose name the Tab key leads to. */
  private current = -1

  constructor(private readonly actions: TrackActions) {
    this.bar.addEventListener("scroll", () => actions.scroll_to(this.bar.scrollTop))
    this.box.addEventListener("scroll", () => { this.box.scrollTop = 0 })
    this.box.addEventListener("keydown", (event) => this.key(event))
  }

  fill({lanes, headings, height}: TrackLayout): void {
    const had_focus = this.box.matches(":focus-within")
    const foldable = lanes.filter((lane) => lane.foldable)
    this.current = (foldable.find(({track}) => track == this.current) ?? foldable[0])?.track ?? -1
    this.spacer.style.height = `${height}px`
    this.names = lanes.map((lane) => ({lane, el: this.name_of(lane)}))
    this.list.replaceChildren(
      ...headings.map(({text, top}) => element("div", {class: "group", style: `top:${top + 1}px`, title: text}, text)),
      ...this.names.map(({el}) => el))
    if (had_focus) {
      this.focus(this.current)
    }
  }

  /** A name folds its track, if that has enough levels. */
  private name_of(lane: Lane): HTMLElement {
    const {track, label, full_label, top, height, folded, foldable, depths} = lane
    const attributes = {
      "data-track": track, class: height < 2 * LINE_HEIGHT ? "name low" : "name", style: `top:${top}px;max-height:${height}px`,
    }
    if (!foldable) {
      return element("div", {...attributes, title: full_label}, label)
    }
    const title = `${full_label}: ${folded ? "show all" : "fold"} ${depths} levels`
    const name = button(`${folded ? "▸" : "▾"} ${label}`,
      {...attributes, title, "aria-expanded": String(!folded), tabindex: track == this.current ? 0 : -1}, () => this.actions.fold(track))
    name.addEventListener("focus", () => this.follow_focus(name, lane))
    return name
  }

  private focus(track: number): void {
    this.names.find(({lane}) => lane.track == track)?.el.focus({preventScroll: true})
  }

  private follow_focus(name: HTMLElement, lane: Lane): void {
    this.names.find(({lane: {track}}) => track == this.current)?.el.setAttribute("tabindex", "-1")
    this.current = lane.track
    name.setAttribute("tabindex", "0")
    if (name.matches(":focus-visible")) {
      this.actions.scroll_into_view(lane)
    }
  }

  /** Leads from the name of a track to that of another one that can be folded. */
  private key(event: KeyboardEvent): void {
    const tracks = this.names.flatMap(({lane: {track, foldable}}) => foldable ? track : [])
    const at = tracks.indexOf(this.current)
    const to = {ArrowUp: Math.max(0, at - 1), ArrowDown: Math.min(at + 1, tracks.length - 1), Home: 0, End: tracks.length - 1}[event.key]
    if (to != null && !event.ctrlKey && !event.metaKey && !event.altKey) {
      this.focus(tracks[to])
      event.preventDefault()
      event.stopPropagation()
    }
  }

  /** Puts the scroll bar next to the plot and the names next to their tracks, scrolled by some pixels. */
  place({left, top, width, height}: BBox, plot_width: number, scroll: number): void {
    const overflows = this.spacer.offsetHeight > height + 1
    const right = Math.min(left + width, plot_width - SCROLLBAR)
    this.bar.style.cssText = `top:${top}px;left:${right}px;height:${height}px;visibility:${overflows ? "visible" : "hidden"}`
    this.list.style.transform = `translateY(${-scroll}px)`
    // The name of a track stays in view as long as any of the track does.
    for (const {el, lane} of this.names) {
      const shift = Math.max(0, Math.min(scroll - lane.top, lane.height - ROW_HEIGHT))
      el.style.transform = shift == 0 ? "" : `translateY(${shift}px)`
    }
    if (Math.abs(this.bar.scrollTop - scroll) >= 1) {
      this.bar.scrollTop = scroll
    }
  }
}

export const GUTTER_CSS = `
.gutter { position: absolute; z-index: 2; overflow: hidden; left: 0; font: 11px/15px var(--jp-ui-font-family, system-ui, sans-serif); color: var(--gp-foreground, #212121); }
.gutter .names { position: absolute; inset: 0; will-change: transform; }
.gutter .names > * { position: absolute; left: 0; max-width: calc(100% - 6px); box-sizing: border-box; overflow: hidden; }
.gutter .group { font-weight: 600; text-overflow: ellipsis; white-space: nowrap; }
.gutter .name { padding: 0 2px 0 14px; text-align: left; overflow-wrap: anywhere; }
.gutter .low { text-overflow: ellipsis; white-space: nowrap; }
.gutter button { font: inherit; color: inherit; background: none; border: 0; cursor: pointer; border-radius: 3px; }
.gutter button.name { padding-left: 2px; }
.gutter button:hover { background: var(--gp-band, #eee); }
.gutter button:focus-visible { outline: 2px solid var(--gp-accent, #005ea2); outline-offset: -2px; }
.scroll { position: absolute; z-index: 2; overflow-y: scroll; overflow-x: hidden; width: 14px; }
`
