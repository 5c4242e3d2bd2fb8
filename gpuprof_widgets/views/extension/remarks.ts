import type {BBox} from "@bokehjs/core/util/bbox"

import {button, element} from "./element"
import {format_moment, format_range} from "./engine"
import {x_of} from "./paint"
import {light_up} from "./selection"
import type {TraceStore} from "./trace_store"
import {pan_to} from "./zoom"

/** A note of the report's author, on a range of time or a moment (ns). */
export type Remark = {text: string, start: number, end: number}

/** Returns the time of a note in words. */
export function remark_place(store: TraceStore, {start, end}: Remark): string {
  const {tick_ns} = store.data.header
  if (start == end) {
    return `at ${format_moment(start, store.bounds[1] - store.bounds[0], tick_ns)}`
  }
  const range = format_range(start, end, tick_ns)
  return `from ${range.start} to ${range.end}`
}

/** Brushes the range of a note, or centres its moment, and brings the timeline onto the screen. */
export function go_to_remark(store: TraceStore, {text, start, end}: Remark): void {
  if (start == end) {
    pan_to(store, start - (store.visible.end - store.visible.start) / 2)
    const nothing = {row: -1, rows: new Int32Array(0), labels: new Set<number>()}
    store.choose({source: "finding", ...nothing, ranges: [[start, end, -1]], key: `${text} ${start}`, text})
  } else {
    light_up(store, {start, end, rows: [], events: 0}, text)
  }
  store.called_up.emit(false)
}

/** Returns the pixels above the axis for the flags of notes. */
export function flags_height({remark_lines}: TraceStore): number {
  return remark_lines.length > 0 ? 20 : 0
}

/** Pixels: notes that are closer to each other share a flag. */
const LEAST = 18
const WIDEST = 220
const GAP = 3

/** The notes of the report's author as flags above the time axis, and as lines and bands through the tracks. */
export class RemarkFlags {
  readonly flags = element("div", {class: "flags", role: "group", "aria-label": "Notes on the timeline"})
  readonly lines = element("div", {class: "flag-lines", "aria-hidden": "true"})
  private readonly buttons: HTMLButtonElement[]
  /** The notes of each flag that is seen. */
  private readonly notes = new Map<HTMLButtonElement, Remark[]>()
  private opened: Remark | null = null

  constructor(private readonly store: TraceStore) {
    this.buttons = store.remark_lines.map(() => this.flag())
    this.flags.append(...this.buttons)
  }

  private flag(): HTMLButtonElement {
    const flag = button("", {class: "flag"}, () => this.open(this.notes.get(flag) ?? []))
    return flag
  }

  /** Goes to a note of a flag, with each press to the next one. */
  private open(notes: Remark[]): void {
    const number = this.opened == null ? -1 : notes.indexOf(this.opened)
    this.opened = notes[(number + 1) % notes.length]
    go_to_remark(this.store, this.opened)
  }

  /** Follows the view: a flag ends where the next one begins; of notes at one place the first has it. */
  place(frame: BBox, view: {start: number, end: number}): void {
    const {store: {remark_lines}, buttons, flags, lines} = this
    const {left, top, width, height} = frame
    const scale = {...view, width}
    flags.style.cssText = `left:${left}px;width:${width}px`
    lines.style.cssText = `left:${left}px;top:${top}px;width:${width}px;height:${height}px`
    const is_seen = ({start, end}: Remark): boolean => end >= view.start && start <= view.end
    const places: {from: number, flag: HTMLButtonElement, notes: Remark[]}[] = []
    remark_lines.forEach((remark, i) => {
      const from = Math.min(Math.max(0, x_of(remark.start, scale)), width - LEAST)
      const last = places[places.length - 1]
      const is_shared = last != null && from < last.from + LEAST
      buttons[i].hidden = !is_seen(remark) || is_shared
      if (!buttons[i].hidden) {
        places.push({from, flag: buttons[i], notes: [remark]})
      } else if (is_seen(remark)) {
        last.notes.push(remark)
      }
    })
    this.notes.clear()
    places.forEach(({from, flag, notes}, i) => {
      const room = (places[i + 1]?.from ?? width) - from - GAP
      const words = notes.map((remark) => `${remark_place(this.store, remark)}: ${plain_words(remark)}`)
      flag.textContent = notes.length == 1 ? plain_words(notes[0]) : `${notes.length} notes`
      flag.title = words.join("\n")
      flag.setAttribute("aria-label", notes.length == 1 ? `Note ${words[0]}` : `${notes.length} notes, ${words.join("; ")}`)
      this.notes.set(flag, notes)
      flag.style.cssText = `left:${from}px;max-width:${Math.min(WIDEST, room)}px`
    })
    lines.replaceChildren(...remark_lines.filter(is_seen).map(({start, end}) => {
      const [from, to] = [x_of(start, scale), x_of(end, scale)]
      return element("div", {class: start == end ? "moment" : "stretch", style: `left:${from}px;width:${to - from}px`})
    }))
  }
}

/** The text without the marks of code. */
function plain_words({text}: Remark): string {
  return text.replaceAll("`", "")
}

export const FLAGS_CSS = `
.flags { position: absolute; top: 0; height: 18px; z-index: 2; }
.flag {
  position: absolute; box-sizing: border-box; height: 18px; padding: 0 5px; overflow: hidden; text-overflow: ellipsis; white-space: nowrap;
  font: 11px/16px var(--jp-ui-font-family, system-ui, sans-serif); color: var(--gp-foreground, #212121); cursor: pointer;
  background: var(--gp-background, #fff); border: 1px solid var(--gp-foreground, #212121); border-left-width: 3px; border-radius: 0 3px 3px 0;
}
.flag[hidden] { display: none; }
.flag:hover { background: var(--gp-band, #eee); }
.flag:focus-visible { outline: 2px solid var(--gp-accent, #005ea2); outline-offset: 1px; }
.flag-lines { position: absolute; overflow: hidden; pointer-events: none; }
.flag-lines > div { position: absolute; top: 0; bottom: 0; box-sizing: border-box; border: dashed var(--gp-foreground, #212121); border-width: 0 0 0 1px; forced-color-adjust: none; }
.flag-lines > .stretch { border-right-width: 1px; background: color-mix(in srgb, var(--gp-foreground, #212121) 9%, transparent); }
`
