import type {BBox} from "@bokehjs/core/util/bbox"

import {button, element} from "./element"
import {Menu, type MenuItem} from "./menu"
import {ROW_HEIGHT, y_of_lane, type Lane, type TrackLayout} from "./tracks"

const SCROLLBAR = 14
const DRAG_THRESHOLD = 4
/** Height of a line of a name; lower tracks have names of one line. */
const LINE_HEIGHT = 15

/** What the names of the tracks are for. */
export type TrackActions = {
  fold(track: number): void
  pin(track: number): void
  hide(track: number): void
  /** Moves a track past the next (1) or previous (-1) one. */
  move(track: number, by: 1 | -1): void
  /** Puts a track before the one at a place among those that it can be moved among, or after the last. */
  place(track: number, at: number): void
  scroll_into_view(lane: Lane): void
  scroll_to(top: number): void
  /** Goes to the box that finds tracks; returns whether there is one. */
  find(): boolean
}

/** A press on a name: `at` is where the track would be put, null before it has moved. */
type Drag = {lane: Lane, y: number, at: number | null}

/** The names of the tracks, as real buttons that fold them, each with a menu, and the scroll bar. */
export class Gutter {
  private readonly stuck = element("div", {class: "names"})
  private readonly scrolled = element("div", {class: "names"})
  private readonly under = element("div", {class: "under"}, this.scrolled)
  private readonly on_top = element("div", {class: "on-top"}, this.stuck)
  private readonly marker = element("div", {class: "marker", hidden: true})
  readonly box = element("div", {class: "gutter", role: "group", "aria-label": "Tracks"}, this.on_top, this.under, this.marker)
  private readonly spacer = element("div", {style: "width:1px"})
  readonly bar = element("div", {class: "scroll", "aria-hidden": "true", tabindex: -1}, this.spacer)
  /** The track that was looked for, -1 for none. */
  private found = -1
  private menu: Menu | null = null
  private names: {el: HTMLElement, lane: Lane}[] = []
  private layout: TrackLayout
  private scroll = 0
  /** The track whose name the Tab key leads to. */
  private current = -1
  private drag: Drag | null = null

  constructor(private readonly actions: TrackActions) {
    this.bar.addEventListener("scroll", () => actions.scroll_to(this.bar.scrollTop))
    for (const box of [this.box, this.under]) {
      box.addEventListener("scroll", () => { box.scrollTop = 0 })
    }
    this.box.addEventListener("keydown", (event) => this.key(event))
    this.box.addEventListener("contextmenu", (event) => this.on_context_menu(event))
    this.box.addEventListener("pointerdown", (event) => this.press(event))
    this.box.addEventListener("pointermove", (event) => this.move(event))
    this.box.addEventListener("pointerup", () => this.drop())
    this.box.addEventListener("pointercancel", () => this.cancel())
    this.box.addEventListener("click", (event) => this.swallow(event), true)
  }

  /** Makes room for the menus of the tracks in an element of the report. */
  mount(host: HTMLElement, root: ShadowRoot | HTMLElement): void {
    this.menu ??= new Menu(host, root)
  }

  remove(): void {
    this.bar.remove()
    this.menu?.remove()
  }

  fill(layout: TrackLayout): void {
    const had_focus = this.box.matches(":focus-within")
    this.layout = layout
    this.spacer.style.height = `${layout.height}px`
    this.on_top.style.height = `${layout.stuck}px`
    this.under.style.top = `${layout.stuck}px`
    this.current = layout.by_track.has(this.current) ? this.current : layout.lanes[0]?.track ?? -1
    this.names = layout.lanes.map((lane) => ({lane, el: this.name_of(lane)}))
    for (const [list, is_stuck] of [[this.stuck, true], [this.scrolled, false]] as const) {
      list.replaceChildren(
        ...layout.headings.filter((heading) => heading.is_stuck == is_stuck).map(({text, top}) =>
          element("div", {class: "group", style: `top:${top + 1}px`, title: text}, text)),
        ...this.names.filter(({lane}) => lane.is_stuck == is_stuck).map(({el}) => el))
    }
    if (had_focus) {
      this.focus(this.current)
    }
  }

  private name_of(lane: Lane): HTMLElement {
    const {track, label, full_label, height, folded, foldable, depths, is_pinned} = lane
    const sign = foldable ? folded ? "▸ " : "▾ " : ""
    const levels = foldable ? `: ${folded ? "show all" : "fold"} ${depths} levels` : ""
    const attributes = {
      title: `${full_label}${levels}`, "aria-expanded": foldable ? String(!folded) : null, "aria-haspopup": foldable ? null : "menu",
      "data-track": track, class: height < 2 * LINE_HEIGHT ? "name low" : "name", tabindex: track == this.current ? 0 : -1,
    }
    const name = button(`${sign}${label}`, attributes, () => foldable ? this.actions.fold(track) : this.open_menu(lane))
    name.addEventListener("focus", () => this.follow_focus(name, lane))
    const more = button("⋮", {
      "aria-label": `Menu of ${full_label}`, "aria-haspopup": "menu", title: "Fold, pin, hide or move this track", class: "more", tabindex: -1,
    }, () => this.open_menu(lane))
    const classes = ["track", ...is_pinned ? ["pinned"] : [], ...track == this.found ? ["found"] : []].join(" ")
    return element("div", {class: classes, style: `top:${lane.top}px;max-height:${lane.height}px`}, name, more)
  }

  /** The element of a track's name. */
  private label_of(track: number): HTMLElement | null {
    return this.box.querySelector(`[data-track="${track}"]`)
  }

  focus(track: number): void {
    this.label_of(track)?.focus({preventScroll: true})
  }

  /** Marks the name of a track that was looked for; -1 marks none. */
  mark(track: number): void {
    this.found = track
    for (const {el, lane} of this.names) {
      el.classList.toggle("found", lane.track == track)
    }
  }

  private follow_focus(name: HTMLElement, lane: Lane): void {
    this.label_of(this.current)?.setAttribute("tabindex", "-1")
    this.current = lane.track
    name.setAttribute("tabindex", "0")
    if (name.matches(":focus-visible")) {
      this.actions.scroll_into_view(lane)
    }
  }

  private open_menu(lane: Lane): void {
    const {track, foldable, folded, is_pinned} = lane
    const {actions} = this
    const place = this.place_of(lane)
    const items: MenuItem[] = [
      ...foldable ? [{text: folded ? "Unfold" : "Fold", keys: "Enter", run: () => actions.fold(track)}] : [],
      {text: is_pinned ? "Unpin" : "Pin to the top", keys: "p", run: () => actions.pin(track)},
      {text: "Hide", keys: "h", run: () => this.hide(track)},
      {text: "Move up", keys: "Alt ↑", disabled: place == 0, run: () => actions.move(track, -1)},
      {text: "Move down", keys: "Alt ↓", disabled: place == this.peers_of(lane).length - 1, run: () => actions.move(track, 1)},
    ]
    const opener = this.label_of(track)
    if (opener != null) {
      this.menu?.open(lane.full_label, items, opener)
    }
  }

  /** The lanes among which a lane can be moved. */
  private peers_of({is_pinned}: Lane): Lane[] {
    return this.layout.lanes.filter((other) => other.is_pinned == is_pinned)
  }

  private place_of(lane: Lane): number {
    return this.peers_of(lane).findIndex(({track}) => track == lane.track)
  }

  /** Hides a track; the keyboard goes on with the one after it. */
  private hide(track: number): void {
    const {lanes} = this.layout
    const at = lanes.findIndex((lane) => lane.track == track)
    this.current = (lanes[at + 1] ?? lanes[at - 1])?.track ?? -1
    this.actions.hide(track)
  }

  private lane_of(event: Event): Lane | null {
    const el = event.target instanceof Element ? event.target.closest(".track") : null
    return this.names.find((name) => name.el === el)?.lane ?? null
  }

  private on_context_menu(event: Event): void {
    const lane = this.lane_of(event)
    if (lane != null) {
      event.preventDefault()
      this.open_menu(lane)
    }
  }

  private key(event: KeyboardEvent): void {
    const lane = this.lane_of(event)
    if (lane != null && !event.ctrlKey && !event.metaKey && this.track_key(lane, event)) {
      event.preventDefault()
      event.stopPropagation()
    }
  }

  private track_key(lane: Lane, {key, altKey}: KeyboardEvent): boolean {
    const {actions, layout: {lanes}} = this
    if (this.drag != null) {
      return key == "Escape" && this.cancel()
    }
    if (altKey) {
      return key == "ArrowUp" || key == "ArrowDown" ? (actions.move(lane.track, key == "ArrowUp" ? -1 : 1), true) : false
    }
    const at = lanes.findIndex(({track}) => track == lane.track)
    switch (key) {
      case "ArrowUp": this.focus(lanes[Math.max(0, at - 1)].track); return true
      case "ArrowDown": this.focus(lanes[Math.min(lanes.length - 1, at + 1)].track); return true
      case "Home": this.focus(lanes[0].track); return true
      case "End": this.focus(lanes[lanes.length - 1].track); return true
      case "ArrowRight": this.open_menu(lane); return true
      case "p": actions.pin(lane.track); return true
      case "h": this.hide(lane.track); return true
      case "t": return actions.find()
      default: return false
    }
  }

  private press(event: PointerEvent): void {
    const lane = this.lane_of(event)
    const is_name = event.target instanceof Element && event.target.matches("[data-track]")
    this.drag = lane != null && is_name && event.button == 0 ? {lane, y: event.clientY, at: null} : null
  }

  private move(event: PointerEvent): void {
    const {drag} = this
    if (drag == null || drag.at == null && Math.abs(event.clientY - drag.y) < DRAG_THRESHOLD) {
      return
    }
    if (drag.at == null) {
      this.box.setPointerCapture(event.pointerId)
      this.box.classList.add("dragging")
    }
    const {top, height} = this.box.getBoundingClientRect()
    const y = event.clientY - top
    if (!drag.lane.is_stuck && (y < this.layout.stuck || y > height)) {
      this.actions.scroll_to(this.scroll + Math.sign(y - this.layout.stuck) * ROW_HEIGHT)
    }
    drag.at = this.drop_place(drag.lane, y)
    this.show_marker(drag.lane, drag.at)
  }

  /** The place among a lane's peers that is nearest to a height. */
  private drop_place(lane: Lane, y: number): number {
    const middles = this.peers_of(lane).map((peer) => y_of_lane(peer, this.scroll) + peer.height / 2)
    return middles.filter((middle) => middle < y).length
  }

  private show_marker(lane: Lane, at: number): void {
    const peers = this.peers_of(lane)
    const y = at < peers.length ? y_of_lane(peers[at], this.scroll) - 2 : y_of_lane(peers[at - 1], this.scroll) + peers[at - 1].height + 1
    this.marker.hidden = false
    this.marker.style.top = `${y}px`
  }

  private drop(): void {
    const {drag} = this
    if (drag?.at != null) {
      this.end_drag()
      this.has_dropped = true
      setTimeout(() => { this.has_dropped = false })  // after the click that follows
      this.actions.place(drag.lane.track, drag.at)
    }
    this.drag = null
  }

  /** Gives up a drag; false where there is none. */
  private cancel(): boolean {
    const was_dragging = this.drag?.at != null
    this.end_drag()
    this.drag = null
    return was_dragging
  }

  private end_drag(): void {
    this.marker.hidden = true
    this.box.classList.remove("dragging")
  }

  private has_dropped = false

  /** The release of a drag is no click on a name. */
  private swallow(event: Event): void {
    if (this.has_dropped) {
      event.stopPropagation()
      event.preventDefault()
    }
  }

  /** Puts the scroll bar next to the plot and the names next to their tracks, scrolled by some pixels. */
  place({left, top, width, height}: BBox, plot_width: number, scroll: number): void {
    this.scroll = scroll
    const overflows = this.spacer.offsetHeight > height + 1
    const right = Math.min(left + width, plot_width - SCROLLBAR)
    this.bar.style.cssText = `top:${top}px;left:${right}px;height:${height}px;visibility:${overflows ? "visible" : "hidden"}`
    this.scrolled.style.transform = `translateY(${-scroll - this.layout.stuck}px)`
    this.keep_in_view(scroll + this.layout.stuck)
    if (Math.abs(this.bar.scrollTop - scroll) >= 1) {
      this.bar.scrollTop = scroll
    }
  }

  /** The name of a track stays in view as long as any of the track does. */
  private keep_in_view(above: number): void {
    for (const {el, lane} of this.names) {
      const shift = lane.is_stuck ? 0 : Math.max(0, Math.min(above - lane.top, lane.height - ROW_HEIGHT))
      el.style.transform = shift == 0 ? "" : `translateY(${shift}px)`
    }
  }
}

export const GUTTER_CSS = `
.gutter { position: absolute; z-index: 2; overflow: hidden; left: 0; font: 11px/15px var(--jp-ui-font-family, system-ui, sans-serif); color: var(--gp-foreground, #212121); }
.gutter .on-top { position: absolute; top: 0; left: 0; right: 0; overflow: hidden; }
.gutter .under { position: absolute; bottom: 0; left: 0; right: 0; overflow: hidden; }
.gutter .names { position: absolute; inset: 0; will-change: transform; }
.gutter .names > * { position: absolute; left: 0; right: 6px; overflow: hidden; }
.gutter .group { font-weight: 600; text-overflow: ellipsis; white-space: nowrap; }
.gutter button { font: inherit; color: inherit; background: none; border: 0; padding: 0 2px; cursor: pointer; border-radius: 3px; }
.gutter .track { display: flex; align-items: flex-start; padding-right: 14px; }
.gutter .pinned { box-shadow: inset 2px 0 var(--gp-accent, #005ea2); padding-left: 3px; }
.gutter .found { background: var(--gp-band, #eee); box-shadow: inset 0 0 0 1px var(--gp-accent, #005ea2); border-radius: 3px; }
.gutter .name { overflow: hidden; max-height: 100%; text-align: left; overflow-wrap: anywhere; touch-action: pan-y; }
.gutter .low { text-overflow: ellipsis; white-space: nowrap; }
.gutter .name[aria-haspopup] { padding-left: 14px; }
.gutter .more { position: absolute; top: 0; right: 0; width: 14px; opacity: 0; }
.gutter .track:is(:hover, :focus-within) .more { opacity: 1; }
.gutter button:hover { background: var(--gp-band, #eee); }
.gutter button:focus-visible { outline: 2px solid var(--gp-accent, #005ea2); outline-offset: -2px; }
.gutter.dragging, .gutter.dragging button { cursor: grabbing; }
.gutter .marker { position: absolute; left: 0; right: 0; height: 3px; background: var(--gp-accent, #005ea2); }
.gutter .marker[hidden] { display: none; }
.scroll { position: absolute; z-index: 2; overflow-y: scroll; overflow-x: hidden; width: 14px; }
`
