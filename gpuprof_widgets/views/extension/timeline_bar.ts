import type * as p from "@bokehjs/core/properties"

import {FAMILIES, kind_of, KINDS} from "./categories"
import {css} from "./colour"
import {button, element, legend} from "./element"
import {has_path} from "./engine"
import {BAR_CSS, Panel, PanelView} from "./panel"
import {Timeline} from "./timeline"
import {FINDER_CSS, TrackFinder} from "./track_finder"
import {view_key, zoom_by, zoom_to} from "./zoom"

const HINT = "Drag for a range · Ctrl + wheel zooms · click an event"

/** Title, buttons, legend and key help of the timeline. */
export class TimelineBarView extends PanelView {
  declare model: TimelineBar

  protected readonly css = BAR_CSS + FINDER_CSS + LEGEND_CSS
  private zoom_to_range: HTMLButtonElement
  private drag_mode: HTMLButtonElement
  private path: HTMLButtonElement
  private measure: HTMLButtonElement
  private finder: TrackFinder
  private steps: {back: HTMLButtonElement, forward: HTMLButtonElement}

  override async lazy_initialize(): Promise<void> {
    await super.lazy_initialize()
    await Promise.all(this.timelines.map((timeline) => timeline.prepare()))
  }

  private get timelines(): Timeline[] {
    return [this.model.timeline, ...this.model.companions]
  }

  override connect_signals(): void {
    super.connect_signals()
    const {window, show_path} = this.store.properties
    this.connect(window.change, () => this.update())
    this.connect(show_path.change, () => this.update())
    this.connect(this.model.timeline.properties.drag_pans.change, () => this.update())
    this.connect(this.store.ruler.changed, () => this.update())
    this.connect(this.store.journal.changed, () => this.show_steps())
    for (const {order_changed, find_called} of this.timelines) {
      this.connect(order_changed, () => this.finder.follow_order())
      this.connect(find_called, () => this.finder.focus())
    }
  }

  protected build_content(): Node[] {
    const {store} = this
    this.zoom_to_range = button("Zoom to range", {}, () => {
      if (store.window != null) {
        zoom_to(store, ...store.window)
      }
    })
    this.drag_mode = button("Drag moves", {title: "Dragging moves the timeline instead of selecting a range"}, () => {
      const drag_pans = !this.model.timeline.drag_pans
      for (const timeline of this.timelines) {
        timeline.drag_pans = drag_pans
      }
    })
    this.path = button("Critical path", {title: "Outline the chain of events that the run waited for (c)"}, () => {
      store.show_path = !store.show_path
    })
    this.path.hidden = !has_path(store.data)
    const {journal, ruler} = store
    this.measure = button("Measure", {title: "Measure the time between two points; they snap to events (m)"}, () => ruler.toggle())
    this.steps = {
      back: button("↶", {"aria-label": "Back", title: "Go back to the previous selection, range and view (Backspace)"}, () => journal.back()),
      forward: button("↷", {"aria-label": "Forward", title: "Go forward again (Shift + Backspace)"}, () => journal.forward()),
    }
    const tools = element("div", {class: "row push"},
      this.path, this.steps.back, this.steps.forward,
      button("−", {"aria-label": "Zoom out", title: "Zoom out"}, () => zoom_by(store, 1 / 2)),
      button("+", {"aria-label": "Zoom in", title: "Zoom in"}, () => zoom_by(store, 2)),
      button("Whole trace", {}, () => void view_key(store, "0")),
      this.zoom_to_range,
      this.drag_mode, this.measure,
      button("Reset", {title: "Clear selection, range, zoom, filters, searches and track changes at once"}, () => store.reset()),
      button("Keys", {"aria-haspopup": "dialog", title: "All keys and commands (?)"}, () => store.keys_called.emit()))
    this.finder = new TrackFinder(this.timelines)
    this.update()
    this.show_steps()
    return [
      element("div", {class: "row"}, element("h3", {}, this.model.companions.length == 0 ? "Timeline" : "Timelines"),
        element("span", {class: "hint clip"}, HINT),
        tools),
      element("div", {class: "row meanings"}, this.legend(), this.finder.el),
    ]
  }

  private update(): void {
    this.zoom_to_range.disabled = this.store.window == null
    this.drag_mode.setAttribute("aria-pressed", String(this.model.timeline.drag_pans))
    this.path.setAttribute("aria-pressed", String(this.store.show_path))
    this.measure.setAttribute("aria-pressed", String(this.store.ruler.is_on))
  }

  private show_steps(): void {
    const {back, forward} = this.store.journal.steps
    this.steps.back.disabled = !back
    this.steps.forward.disabled = !forward
  }

  private legend(): HTMLUListElement {
    const stores = this.timelines.map(({store}) => store)
    const categories = stores.flatMap(({data}) => data.header.categories)
    const families = new Set(stores.flatMap(({data}) => data.header.families))
    const kernels = FAMILIES.filter((_, family) => families.has(family))
    const present = KINDS.filter((kind) => categories.some((category) => kind_of(category) === kind))
      .flatMap((kind) => kind === kind_of("kernel") ? kernels : [kind])
    return legend("Colours", present.map(({colour, text}) => [css(colour), text]))
  }
}

const LEGEND_CSS = `
.meanings .legend { flex: 1 1 300px; min-width: 0; }
`

type TimelineBarProps = {
  timeline: p.Property<Timeline>
  companions: p.Property<Timeline[]>
}

export interface TimelineBar extends p.AttrsOf<TimelineBarProps> {}

export class TimelineBar extends Panel {
  static {
    this.prototype.default_view = TimelineBarView
    this.define<TimelineBarProps>(({List, Ref}) => ({
      timeline: [Ref(Timeline)],
      companions: [List(Ref(Timeline)), []],
    }))
  }
}
