import {button, element} from "./element"
import {format_count, matcher} from "./engine"
import type {Timeline} from "./timeline"

/** From so many tracks on there is a box that finds them. */
const MANY = 8

/** A track of one of the timelines, by its whole name. */
type Named = {timeline: Timeline, track: number, name: string}

/** Finds tracks by name in all timelines of the page, and brings hidden ones back. */
export class TrackFinder {
  private readonly box = element("input", {
    type: "search", size: 14, placeholder: "Find a track", "aria-label": "Find a track", "aria-keyshortcuts": "t", spellcheck: "false",
    title: "Scrolls to a track by its name (t). Enter goes to the next one, Shift + Enter to the previous one, ↓ to the track's name.",
  })
  private readonly result = element("span", {class: "number muted", role: "status", "aria-label": "Found tracks"})
  private readonly show_all = button("", {title: "Show the hidden tracks again"}, () => this.bring_back())
  readonly el = element("div", {class: "row push finder"}, this.result, this.box, this.show_all)
  private found: Named[] = []
  private at = 0

  constructor(private readonly timelines: Timeline[]) {
    this.box.hidden = timelines.reduce((count, {order}) => count + order.order.length, 0) < MANY
    this.box.addEventListener("input", () => {
      this.at = 0
      this.find(false)
    })
    this.box.addEventListener("keydown", (event) => this.key(event))
    this.follow_order()
  }

  focus(): void {
    if (!this.box.hidden) {
      this.box.focus()
      this.box.select()
    }
  }

  /** Follows a change of the tracks that are shown. */
  follow_order(): void {
    const count = this.timelines.reduce((count, {order}) => count + order.hidden.size, 0)
    this.show_all.hidden = count == 0
    this.show_all.textContent = `${format_count(count, "hidden track")}: show`
    this.search()
  }

  private bring_back(): void {
    for (const timeline of this.timelines) {
      timeline.reorder(timeline.order.show())
    }
  }

  /** The shown tracks whose names contain the text, from top to bottom, and the number of hidden ones. */
  private search(): void {
    const {value} = this.box
    const {test} = matcher(value, false)
    const named = (tracks: Iterable<number>, timeline: Timeline): Named[] => [...tracks]
      .map((track) => ({timeline, track, name: this.name_of(timeline, track)}))
      .filter(({name}) => value != "" && test(name))
    this.found = this.timelines.flatMap((timeline) => named([...timeline.order.on_top, ...timeline.order.below], timeline))
    const hidden = this.timelines.flatMap((timeline) => named(timeline.order.hidden, timeline)).length
    this.at = Math.min(this.at, Math.max(0, this.found.length - 1))
    const place = this.found.length == 0 ? "No track" : `${this.at + 1} of ${this.found.length}`
    this.result.textContent = value == "" ? "" : hidden == 0 ? place : `${place}, ${hidden} hidden`
  }

  private name_of({store}: Timeline, track: number): string {
    const {label} = store.data.header.tracks[track]
    return this.timelines.length == 1 ? label : `${store.label} · ${label}`
  }

  /** Goes to the current one of the tracks that are found; `on_screen`: the page scrolls there too. */
  private find(on_screen: boolean, takes_focus: boolean = false): void {
    this.search()
    const current = this.found[this.at]
    for (const timeline of this.timelines) {
      timeline.sought.emit(timeline === current?.timeline ? {track: current.track, on_screen, takes_focus} : null)
    }
  }

  private key(event: KeyboardEvent): void {
    const count = this.found.length
    if (event.isComposing || this.box.value == "") {
      return
    } else if (event.key == "Enter") {
      this.at = (this.at + (event.shiftKey ? -1 : 1) + count) % Math.max(1, count)
      this.find(true)
    } else if (event.key == "ArrowDown") {
      this.find(true, true)
    } else if (event.key == "Escape") {
      this.box.value = ""
      this.find(false)
    } else {
      return
    }
    event.preventDefault()
    event.stopPropagation()
  }
}

export const FINDER_CSS = `
.finder { margin-top: 4px; }
.finder [hidden] { display: none; }
`
