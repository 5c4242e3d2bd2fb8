import type * as p from "@bokehjs/core/properties"

import {FAMILIES} from "./categories"
import {button, element, with_code, type Fact} from "./element"
import {chain, format_bytes, format_count, format_ns, format_share, MODULES, type Link, type Store} from "./engine"
import {InstanceSteps, STEPS_CSS} from "./instances"
import {Panel, PanelView} from "./panel"
import type {Selection} from "./report_state"
import {select_event} from "./selection"
import type {TraceStore} from "./trace_store"

/** Two lines under the timeline: the range in numbers, and the selection with its owners. */
export class DetailsView extends PanelView {
  declare model: Details

  protected readonly css = DETAIL_CSS + STEPS_CSS
  private range: HTMLElement
  private chosen: HTMLElement
  private steps: InstanceSteps

  override connect_signals(): void {
    super.connect_signals()
    const {store} = this
    this.connect(store.properties.window.change, () => this.show_range())
    this.connect(store.draft_changed, () => this.show_range())
    this.connect(store.selection_changed, () => this.show_selection())
  }

  protected build_content(): Node[] {
    this.range = element("div", {class: "range row number", role: "status", "aria-label": "Time range"})
    this.chosen = element("div", {role: "group", "aria-live": "polite", "aria-label": "Selection", class: "words"})
    this.steps = new InstanceSteps(this.store)
    this.show_range()
    this.show_selection()
    return [this.range, element("div", {class: "chosen"}, this.chosen, this.steps.el)]
  }

  private show_range(): void {
    const {store} = this
    const {range, start, end, span, devices} = store.range_totals
    const busy = devices.map(({device, busy}) => `GPU ${device} busy ${format_share(busy / span)} (${format_ns(busy)})`)
    const words = [
      element("b", {}, range == null ? "Whole trace" : "Range"),
      element("span", {}, `${store.moment(start)} to ${store.moment(end)}`),
      element("span", {}, `= ${format_ns(span)}`),
      ...busy.map((text) => element("span", {class: "busy"}, text)),
    ]
    const clear = range == null ? [] : [button("Clear", {title: "Clear the range"}, () => store.brush(null))]
    this.range.replaceChildren(...words, ...clear)
  }

  private show_selection(): void {
    const {selection} = this.store
    this.steps.update(selection?.source != "timeline")
    if (selection == null) {
      const hint = "Nothing selected. Click an event, a flame graph bar or a table row."
      this.chosen.replaceChildren(element("div", {class: "muted chain"}, hint))
    } else if (selection.row >= 0) {
      this.chosen.replaceChildren(...this.event_lines(selection.row))
    } else {
      this.chosen.replaceChildren(element("div", {class: "chain"}, ...this.instances(selection)))
    }
  }

  private instances(selection: Selection): Node[] {
    const {source, facts} = selection
    const words = element("span", {class: "muted"}, extent_of(selection))
    return source == "finding" ? [element("p", {}, ...title_of(selection), " ", words)]
      : [element("span", {class: "name"}, ...title_of(selection)), words, ...facts == null ? [] : [fact_list(facts())]]
  }

  private event_lines(row: number): Node[] {
    const {data} = this.store
    const links = chain(data, row).map((link) => {
      const name = button(link.text, {class: "clip", title: link.text, "aria-current": link.row == row ? "true" : null},
        () => select_event(this.store, link.row))
      return element("li", {}, element("span", {class: "muted"}, ROLES[link.role]), name)
    })
    return [
      element("div", {class: "title"},
        element("div", {class: "name clip", title: data.name(row)}, data.name(row)), fact_list(facts_of(this.store, row))),
      element("ol", {class: "chain", "aria-label": "Chain of owners"}, ...links),
    ]
  }
}

/** Returns the name of a selection; of a finding its sentence. */
function title_of({source, text}: Selection): (Node | string)[] {
  return source == "finding" ? with_code(text) : [text]
}

/** Says how much of the timeline a selection lights up. */
function extent_of({source, rows, ranges = [], events = rows.length}: Selection): string {
  const first = rows.length < events ? `, the first ${rows.length.toLocaleString("en")}` : ""
  const counts = [
    ...rows.length == 0 ? [] : [format_count(events, "event") + first], ...ranges.length == 0 ? [] : [format_count(ranges.length, "time range")],
  ]
  return counts.length > 0 ? `${counts.join(" and ")} highlighted on the timeline`
    : source == "finding" ? "in the selected range" : "is not on the timeline"
}

/** Returns the duration of an event or the number of events; nothing where a range alone is meant. */
function size_of({source, row, rows}: Selection, data: Store): string[] {
  return row >= 0 ? [`: ${format_ns(data.ns(data.end[row] - data.ts[row]))}`]
    : rows.length == 0 && source == "finding" ? [] : [`: ${format_count(rows.length, "event")}`]
}

function fact_list(facts: Fact[]): HTMLElement {
  return element("div", {class: "facts"}, ...facts.map(([label, value]) =>
    element("span", {}, element("span", {class: "muted"}, `${label} `), element("span", {}, value))))
}

export class Details extends Panel {
  static {
    this.prototype.default_view = DetailsView
  }
}

/** Returns the facts about one event, for the tooltip and the detail line. */
export function facts_of(trace: TraceStore, row: number): Fact[] {
  const store = trace.data
  const track = store.header.tracks[store.track[row]]
  const duration = store.end[row] - store.ts[row]
  const facts: Fact[] = [["Duration", format_ns(store.ns(duration))]]
  const self = store.self_time(row)
  if (self != duration) {
    facts.push(["Self time", format_ns(store.ns(self))])
  }
  facts.push(["Start", trace.moment(store.ns(store.ts[row]))])
  if (store.count[row] > 1) {
    facts.push(["Stands for", `${store.count[row]} short events, merged to save space`])
  }
  if (store.shape(row) != "") {
    facts.push(["Shapes", store.shape(row)])
  }
  if (store.bytes(row) != 0) {
    facts.push(["Size", format_bytes(store.bytes(row))])
  }
  const {module_classes} = store.header
  const name = store.name(row)
  if (MODULES.includes(store.category(row)) && Object.hasOwn(module_classes, name)) {
    facts.push(["Class", module_classes[name]])
  }
  facts.push(["Category", store.category(row)])
  const family = FAMILIES[store.header.families[store.label[row]]]
  if (family != null) {
    facts.push(["Family", family.text])
  }
  facts.push(track.stream >= 0 ? ["Stream", `${track.stream} on GPU ${track.device}`] : ["Track", track.label])
  return facts
}

/** Returns the owners of an event, from the outermost to itself, as one line; empty where none is known. */
export function chain_text(store: Store, row: number): string {
  const links = chain(store, row)
  return links.length < 2 ? "" : links.map(({role, text}) => `${ROLES[role]}: ${text}`).join(" › ")
}

/** The page's words for the members of a chain. */
const ROLES: Record<Link["role"], string> = {
  "line": "line", "annotation": "annotation", "module": "module", "python": "Python", "forward line": "forward line",
  "forward module": "forward module", "forward": "forward op", "op": "op", "launch": "launch", "gpu": "GPU",
}

const DETAIL_CSS = `
:host { padding: 6px 0 8px; }
.range { min-height: 26px; }
/* Of one height whatever is selected, for two rows of causes: nothing below moves. */
.chosen { display: flex; align-items: start; gap: 10px; height: 84px; padding: 0 10px; background: var(--band); border-radius: 4px; }
.words { flex: 1; min-width: 0; height: 100%; overflow-y: auto; padding: 4px 0; }
.chosen .steps { padding: 4px 0; }
.chain { list-style: none; display: flex; flex-wrap: wrap; gap: 3px 4px; margin-top: 3px; }
.chain button { max-width: 300px; text-align: left; }
.chain button[aria-current] { border-color: var(--accent); }
.chain li { display: flex; align-items: center; gap: 4px; max-width: 100%; min-width: 0; }
.chain li + li::before { content: "›"; color: var(--muted); }
.facts { display: flex; flex-wrap: wrap; gap: 0 14px; }
.chain > .facts { flex-basis: 100%; }
.title { display: flex; gap: 0 14px; }
.title .name { flex: 0 1 auto; max-width: 60%; }
.title .facts { flex: 1 1 0; min-width: 0; }
.name { font-weight: 600; }
code { font: 12px var(--mono); }
`

/** One line above each of several timelines: its trace, busy times in the range, the selection. */
export class TimelineTitleView extends PanelView {
  declare model: TimelineTitle

  protected readonly css = TITLE_CSS
  private numbers: HTMLElement
  private chosen: HTMLElement

  override connect_signals(): void {
    super.connect_signals()
    const {store} = this
    this.connect(store.properties.window.change, () => this.show_numbers())
    this.connect(store.draft_changed, () => this.show_numbers())
    this.connect(store.selection_changed, () => this.show_selection())
  }

  protected build_content(): Node[] {
    this.numbers = element("span", {class: "number muted"})
    this.chosen = element("span", {class: "number clip chosen", "aria-live": "polite"})
    this.show_numbers()
    this.show_selection()
    return [element("div", {class: "row title", role: "group", "aria-label": this.model.text},
      element("h3", {}, this.model.text), this.numbers, this.chosen)]
  }

  private show_numbers(): void {
    const {range, span, devices} = this.store.range_totals
    const busy = devices.map(({device, busy}) => `GPU ${device} ${this.model.busy} ${format_share(busy / span)}`)
    this.numbers.textContent = [range == null ? format_ns(span) : `range of ${format_ns(span)}`, ...busy].join(" · ")
  }

  private show_selection(): void {
    const {selection, data} = this.store
    const title = selection == null ? [] : selection.row < 0 ? title_of(selection) : [data.name(selection.row)]
    this.chosen.replaceChildren(...title, ...selection == null ? [] : size_of(selection, data))
    this.chosen.title = this.chosen.textContent
  }
}

type TimelineTitleProps = {text: p.Property<string>, busy: p.Property<string>}

export interface TimelineTitle extends p.AttrsOf<TimelineTitleProps> {}

export class TimelineTitle extends Panel {
  static {
    this.prototype.default_view = TimelineTitleView
    this.define<TimelineTitleProps>(({Str}) => ({
      text: [Str, ""],
      busy: [Str, "busy"],
    }))
  }
}

const TITLE_CSS = `
:host { padding: 6px 0 1px; }
.title { flex-wrap: nowrap; }
.chosen { min-width: 0; }
`
