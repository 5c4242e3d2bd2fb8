import {FAMILIES, kind_of, KINDS} from "./categories"
import {css} from "./colour"
import {button, element, legend} from "./element"
import {has_path} from "./engine"
import {BAR_CSS, Panel, PanelView} from "./panel"
import type {TraceStore} from "./trace_store"
import {view_key, zoom_by, zoom_to} from "./zoom"

const HINT = "Drag for a range · Ctrl + wheel zooms"

/** Title, buttons, legend and key help of the timeline. */
export class TimelineBarView extends PanelView {
  declare model: TimelineBar

  protected readonly css = BAR_CSS
  private zoom_to_range: HTMLButtonElement
  private path: HTMLButtonElement
  private back: HTMLButtonElement

  override async lazy_initialize(): Promise<void> {
    await super.lazy_initialize()
    await Promise.all(this.stores.map(({ready}) => ready))
  }

  private get stores(): TraceStore[] {
    return this.store.linked.stores
  }

  override connect_signals(): void {
    super.connect_signals()
    const {window, show_path} = this.store.properties
    this.connect(window.change, () => this.update())
    this.connect(show_path.change, () => this.update())
    this.connect(this.store.journal.changed, () => this.update())
  }

  protected build_content(): Node[] {
    const {store} = this
    this.zoom_to_range = button("Zoom to range", {}, () => {
      if (store.window != null) {
        zoom_to(store, ...store.window)
      }
    })
    this.path = button("Critical path", {title: "Outline the chain of events that the run waited for (c)"}, () => {
      store.show_path = !store.show_path
    })
    this.path.hidden = !has_path(store.data)
    this.back = button("↶", {"aria-label": "Back", title: "Go back to the previous selection, range and view (Backspace)"}, () => store.journal.back())
    const tools = element("div", {class: "row push"},
      this.path, this.back,
      button("−", {"aria-label": "Zoom out", title: "Zoom out"}, () => zoom_by(store, 1 / 2)),
      button("+", {"aria-label": "Zoom in", title: "Zoom in"}, () => zoom_by(store, 2)),
      button("Whole trace", {}, () => void view_key(store, "0")),
      this.zoom_to_range,
      button("Reset", {title: "Clear selection, range, zoom, filters and searches at once"}, () => store.reset()),
      button("Keys", {"aria-haspopup": "dialog", title: "All keys and commands (?)"}, () => store.keys_called.emit()))
    this.update()
    return [
      element("div", {class: "row"}, element("h3", {}, this.stores.length == 1 ? "Timeline" : "Timelines"),
        element("span", {class: "hint clip"}, HINT),
        tools),
      this.legend(),
    ]
  }

  private update(): void {
    this.back.disabled = !this.store.journal.has_step
    this.zoom_to_range.disabled = this.store.window == null
    this.path.setAttribute("aria-pressed", String(this.store.show_path))
  }

  private legend(): HTMLUListElement {
    const {stores} = this
    const categories = stores.flatMap(({data}) => data.header.categories)
    const families = new Set(stores.flatMap(({data}) => data.header.families))
    const kernels = FAMILIES.filter((_, family) => families.has(family))
    const present = KINDS.filter((kind) => categories.some((category) => kind_of(category) === kind))
      .flatMap((kind) => kind === kind_of("kernel") ? kernels : [kind])
    return legend("Colours", present.map(({colour, text}) => [css(colour), text]))
  }
}

export class TimelineBar extends Panel {
  static {
    this.prototype.default_view = TimelineBarView
  }
}
