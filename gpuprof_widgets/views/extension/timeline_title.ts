import type * as p from "@bokehjs/core/properties"

import {element} from "./element"
import {format_count, format_ns, format_share, totals} from "./engine"
import {Panel, PanelView} from "./panel"

/** One line above one of several timelines: whose it is, how busy it was in the range, what is selected. */
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
    const {store} = this
    const {data} = store
    const range = store.draft ?? store.window
    const [start, end] = range ?? store.own_bounds
    const {span, devices} = totals(data, {start: data.tick(start), end: data.tick(end)})
    const busy = devices.map(({device, busy}) => `GPU ${device} ${this.model.busy} ${format_share(busy / span)}`)
    this.numbers.textContent = [range == null ? format_ns(span) : `range of ${format_ns(span)}`, ...busy].join(" · ")
  }

  private show_selection(): void {
    const {selection, data} = this.store
    this.chosen.textContent = selection == null ? ""
      : selection.row < 0 ? `${selection.text}: ${format_count(selection.rows.length, "event")}`
        : `${selection.text}: ${format_ns(data.ns(data.end[selection.row] - data.ts[selection.row]))}`
    this.chosen.title = this.chosen.textContent
  }
}

export class TimelineTitle extends Panel {
  declare properties: TimelineTitle.Props
  declare __view_type__: TimelineTitleView

  static override __module__ = "gpuprof_widgets.views.models"

  static {
    this.prototype.default_view = TimelineTitleView
    this.define<TimelineTitle.Props>(({Str}) => ({
      text: [Str, ""],
      busy: [Str, "busy"],
    }))
  }
}

export namespace TimelineTitle {
  export type Attrs = p.AttrsOf<Props>
  export type Props = Panel.Props & {text: p.Property<string>, busy: p.Property<string>}
}

export interface TimelineTitle extends TimelineTitle.Attrs {}

const TITLE_CSS = `
:host { padding: 6px 0 1px; }
.title { flex-wrap: nowrap; }
.chosen { min-width: 0; }
`
