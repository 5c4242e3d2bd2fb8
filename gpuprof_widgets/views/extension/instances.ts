import {button, element} from "./element"
import {format_count, instance_from, next_instance, place_of_instance, type Instance, type Selected} from "./engine"
import type {TraceState} from "./report_state"
import {pan_to, zoom_to} from "./zoom"

/** Shares of the view's width within which an event keeps the zoom, and how much of its length is shown around it else. */
const [LEAST, MOST, AROUND] = [1 / 12, 4 / 5, 1.5]
/** What an event without length is shown as long as, ns. */
const INSTANT = 1_000

/** Goes to the next (1) or previous (-1) of the selected events in time: all of them stay selected. */
export function step_instance(store: TraceState, direction: 1 | -1): void {
  const {stores, choose} = store.linked
  const selected = selected_in(store)
  const current = current_instance(store)
  const next = current == null ? instance_from(selected, store.visible.start) : next_instance(selected, current, direction)
  if (next != null) {
    const {data} = stores[next.side]
    look_at(store, data.ns(data.ts[next.row]), data.ns(data.end[next.row]))
    choose(stores.map(({selection}, side) => selection == null ? null : {...selection, row: side == next.side ? next.row : -1}))
  }
}

/** The selected events of each trace of the page. */
function selected_in(store: TraceState): Selected[] {
  return store.linked.stores.map(({data, selection}) => ({store: data, rows: selection?.rows ?? new Int32Array(0)}))
}

function current_instance(store: TraceState): Instance | null {
  const rows = store.linked.stores.map(({selection}) => selection?.row ?? -1)
  const side = rows.findIndex((row) => row >= 0)
  return side < 0 ? null : {side, row: rows[side]}
}

/** Brings an event into view with what is around it; the view moves only where the event is not well in it. */
function look_at(store: TraceState, start: number, end: number): void {
  const {start: left, end: right} = store.visible
  const view = right - left
  const half = end > start ? 0 : INSTANT / 2
  const length = end - start + 2 * half
  if (length < LEAST * view || length > MOST * view) {
    zoom_to(store, start - half, end + half, AROUND)
  } else if (start - half < left || end + half > right) {
    pan_to(store, (start + end - view) / 2)
  }
}

/** Buttons that step through the selected events, and the place of the current one among them. */
export class InstanceSteps {
  private readonly place = element("span", {class: "number"})
  readonly el = element("div", {class: "steps", role: "group", "aria-label": "Selected events"},
    button("‹", {"aria-label": "Previous event", title: "Go to the previous selected event (,)"}, () => step_instance(this.store, -1)),
    this.place,
    button("›", {"aria-label": "Next event", title: "Go to the next selected event (.)"}, () => step_instance(this.store, 1)))

  constructor(private readonly store: TraceState) {}

  /** Follows the selection; hidden where there are no events to step through. */
  update(is_shown: boolean): void {
    const selected = selected_in(this.store)
    const count = selected.reduce((sum, {rows}) => sum + rows.length, 0)
    const current = current_instance(this.store)
    this.el.hidden = !is_shown || count == 0
    const place = current == null || this.el.hidden ? "" : `${place_of_instance(selected, current).toLocaleString("en")} of `
    const is_cut = this.store.linked.stores.some(({selection}) => selection?.events != null && selection.events > selection.rows.length)
    const events = place == "" ? format_count(count, "event") : count.toLocaleString("en")
    this.place.textContent = `${place}${is_cut ? "the first " : ""}${events}`
  }
}

export const STEPS_CSS = `
.steps { display: flex; align-items: center; gap: 4px; flex: none; }
.steps[hidden] { display: none; }
.steps .number { min-width: 7ch; text-align: center; }
`
