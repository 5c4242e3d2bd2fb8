import type {BBox} from "@bokehjs/core/util/bbox"

import {button, element} from "./element"
import type {Store, TrackInfo} from "./engine"

/** The place of a track in the track area; pixels from its top, before scrolling. */
export type Lane = {
  track: number
  label: string
  top: number
  height: number
  depths: number
  row_height: number
  folded: boolean
  foldable: boolean
}

type Heading = {text: string, top: number}

export type TrackLayout = {lanes: Lane[], headings: Heading[], height: number, by_track: Map<number, Lane>}

export const ROW_HEIGHT = 17
const HEADING_HEIGHT = 20
const LANE_GAP = 5
const FOLDED_HEIGHT = 34
/** Height of a folded track where several timelines stand under each other. */
const COMPACT_HEIGHT = 20
const COMPACT_GAP = 2
/** Tracks deeper than this start folded: a Python stack of 60 frames would push the GPU off the screen. */
const DEEP = 9
/** Ops lie within cell lines and modules; tracks of this depth leave the GPU on the screen. */
const DEEP_OPS = 20
/** Heading of the worker processes, which share one job. */
const WORKERS = "DataLoader workers"

/** Number of nesting levels of every track. */
export function track_depths(store: Store): number[] {
  return store.header.tracks.map((_, track) => store.levels(track))
}

/** Returns the tracks that are folded at first; a single track pushes no other off the screen. */
export function folded_at_first({header: {tracks}}: Store, depths: number[], compact: boolean): Set<number> {
  const most = tracks.map(({kind}) => compact ? 0 : tracks.length == 1 ? Infinity : kind == "cpu" ? DEEP_OPS : DEEP)
  return new Set(depths.flatMap((depth, track) => depth > most[track] ? [track] : []))
}

function heading_of(track: TrackInfo): string {
  if (track.device >= 0) {
    return `GPU ${track.device}`
  }
  if (track.kind == "worker") {
    return WORKERS
  }
  return track.kind == "other" ? "Other" : `CPU · process ${track.process}`
}

/** Returns the label of a lane without the words of its heading. */
function label_under(heading: string, {label}: TrackInfo): string {
  return heading == WORKERS ? label.replace("DataLoader ", "") : label.replace(`${heading} · `, "")
}

function lane_of(track: number, label: string, top: number, depths: number, folded: boolean, compact: boolean): Lane {
  const foldable = depths > (compact ? 1 : 2)
  const folded_height = compact ? COMPACT_HEIGHT : FOLDED_HEIGHT
  const height = folded && foldable ? Math.min(folded_height, depths * ROW_HEIGHT) : depths * ROW_HEIGHT
  return {track, label, top, height, depths, row_height: height / depths, folded: folded && foldable, foldable}
}

/** Returns the place of a track where there is little room: the GPU first, then the thread that launches its work. */
function rank_in_compact({device, kind}: TrackInfo): number {
  return device >= 0 ? 0 : kind == "cpu" ? 1 : 2
}

/** Returns the tracks from top to bottom, under headings for their common names; compact ones have no headings. */
export function layout_tracks(store: Store, depths: number[], folded: Set<number>, compact: boolean): TrackLayout {
  const lanes: Lane[] = []
  const headings: Heading[] = []
  let top = 0
  const order = store.header.tracks.map((info, track) => ({info, track}))
  if (compact) {
    order.sort((a, b) => rank_in_compact(a.info) - rank_in_compact(b.info))
  }
  order.forEach(({info, track}) => {
    if (depths[track] == 0) {
      return
    }
    const text = heading_of(info)
    if (!compact && headings.at(-1)?.text != text) {
      headings.push({text, top})
      top += HEADING_HEIGHT
    }
    const label = compact ? info.label : label_under(text, info)
    const lane = lane_of(track, label, top, depths[track], folded.has(track), compact)
    lanes.push(lane)
    top += lane.height + (compact ? COMPACT_GAP : LANE_GAP)
  })
  return {lanes, headings, height: Math.max(top, ROW_HEIGHT), by_track: new Map(lanes.map((lane) => [lane.track, lane]))}
}

export type Place = {lane: Lane, depth: number}

/** The lane and nesting level at a height, null between lanes. */
export function place_at(layout: TrackLayout, y: number): Place | null {
  const lane = layout.lanes.find(({top, height}) => y >= top && y < top + height)
  return lane == null ? null : {lane, depth: Math.min(lane.depths - 1, Math.floor((y - lane.top) / lane.row_height))}
}

const SCROLLBAR = 14

/** The names of the tracks, as real buttons that fold them, and the scroll bar. */
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

  /** Puts the scroll bar next to the plot and the names next to their tracks, scrolled by some pixels. */
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
