import type {PanelView} from "./panel"

import {AnalysisTabsView} from "./analysis_tabs"
import {element, with_code} from "./element"
import {MemoryBarView} from "./memory_bar"
import {go_to_peak, memory_of} from "./memory_plot"
import {OpTableView} from "./op_table"
import type {Evidence} from "./report_state"
import {go_to} from "./scroll_port"
import {has_evidence} from "./selection"
import type {TraceStore} from "./trace_store"
import {zoom_to} from "./zoom"

/** A figure of the whole record, and what explains it: a tab (`panel`), else a view, with its evidence. */
export type Card = Evidence & {label: string, value: string, detail: string, about: string, panel: string, view: string}

/** Returns a row of buttons, one per card. */
export function summary_cards(cards: Card[], on_click: (card: Card) => void): HTMLElement {
  const items = cards.map((card) => {
    const {label, value, detail, about} = card
    const el = element("button", {type: "button", class: "card", title: about.replaceAll("`", "")},
      element("span", {class: "label"}, label),
      element("span", {class: "figures"}, element("b", {}, ...with_code(value)), " ", element("span", {class: "detail clip"}, ...with_code(detail))))
    el.addEventListener("click", () => on_click(card))
    return el
  })
  return element("div", {class: "cards", role: "group", "aria-label": "Summary"}, ...items)
}

/** Brings what explains a card onto the screen: a tab, the row of an op, the peak of the memory, or the timeline. */
export function jump(header: PanelView, card: Card): void {
  const {panel, view, detail} = card
  const {store} = header
  const tabs = panel == "" ? null : view_of(header, AnalysisTabsView)
  const memory = view == "memory" ? view_of(header, MemoryBarView) : null
  const ops = view == "op_table" ? view_of(header, OpTableView) : null
  if (tabs != null) {
    tabs.model.active = panel
    go_to_part(tabs, "start", "[role=tab][aria-selected=true]")
  } else if (memory != null) {
    show_peak(store, memory, detail)
    go_to_part(memory, "start", "select, button")
  } else if (ops != null) {
    go_to_part(ops, "center", "tr[aria-selected=true]", "tr[data-key]")
  } else {
    if (!has_evidence(card)) {
      zoom_to(store, ...store.bounds, 0)
    }
    store.called_up.emit()
  }
}

/** Returns the view of the same trace of that kind, if the page has one. */
export function view_of<V extends PanelView>(header: PanelView, kind: abstract new (...args: never[]) => V): V | null {
  return header.owner.query_one((view) => view instanceof kind && view.store === header.store) as V | null
}

/** Goes to the first of these parts of a view that there is. */
function go_to_part(view: PanelView, block: ScrollLogicalPosition, ...parts: string[]): void {
  const [el] = parts.flatMap((part) => [...view.shadow_el.querySelectorAll<HTMLElement>(part)])
  if (el != null) {
    go_to(el, block)
  }
}

function show_peak(store: TraceStore, {model: {plot}}: MemoryBarView, device: string): void {
  const at = memory_of(store).devices.findIndex(({name}) => name == device)
  if (at >= 0) {
    plot.device = at
    go_to_peak(store, at)
  }
}

export const CARDS_CSS = `
.cards { display: flex; flex-wrap: wrap; gap: 6px; margin-top: 6px; }
.cards:empty { display: none; }
.card { flex: 0 1 auto; min-width: 116px; max-width: 260px; display: grid; gap: 0; padding: 3px 10px 4px; text-align: left; }
.card .label { color: var(--muted); font-size: 12px; line-height: 1.3; white-space: nowrap; }
.card .figures { display: flex; align-items: baseline; gap: 7px; min-width: 0; line-height: 1.3; white-space: nowrap; font-variant-numeric: tabular-nums; }
.card b { font-size: 17px; font-weight: 600; }
.card .detail { min-width: 0; color: var(--muted); font-size: 12px; }
`
