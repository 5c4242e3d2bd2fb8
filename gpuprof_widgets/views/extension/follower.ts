import type {StyleSheetLike} from "@bokehjs/core/dom"
import type * as p from "@bokehjs/core/properties"
import {Column, ColumnView} from "@bokehjs/models/layouts/column"

import {extent_of, title_of} from "./details"
import {button, element} from "./element"
import {format_ns, format_range} from "./engine"
import {InstanceSteps, STEPS_CSS} from "./instances"
import {Panel, PanelView} from "./panel"
import type {Selection} from "./selection"
import {TraceStore} from "./trace_store"

/** JupyterLab and nbconvert cut outputs off: it would stick to these frames, not to the notebook. Outputs that scroll stay so. */
const OUTPUT_FRAMES = `
:is(.jp-OutputArea-child, .jp-OutputArea-output, .output_area, .output_subarea,
    .jp-Cell:not(.jp-mod-outputsScrolled) .jp-Cell-outputArea):has(.gpuprof-report) { overflow: clip !important; min-width: 0; }
`

/**
 * What follows the reader along the report: it sticks to the top of the screen once the view before it has left. Until then it
 * lies hidden over the end of that view: it takes no room, and nothing moves when it comes and goes.
 */
export class FollowerView extends ColumnView {
  declare model: Follower

  private observer: IntersectionObserver | null = null
  private readonly frames_style = element("style", {}, OUTPUT_FRAMES)

  override stylesheets(): StyleSheetLike[] {
    return [...super.stylesheets(), FOLLOWER_CSS]
  }

  override after_render(): void {
    super.after_render()
    this.el.style.marginTop = `${-this.model.height!}px`
    this.root.el.parentElement?.append(this.frames_style)
    this.follow(this.el.previousElementSibling!)
  }

  override remove(): void {
    this.observer?.disconnect()
    this.frames_style.remove()
    super.remove()
  }

  private follow(view: Element): void {
    this.observer?.disconnect()
    this.observer = new IntersectionObserver(() => {
      const sticks = this.el.getBoundingClientRect().bottom > view.getBoundingClientRect().bottom + 1
      this.el.toggleAttribute("data-shown", sticks)
    }, {threshold: STEPS})
    this.observer.observe(view)
    this.observer.observe(this.el)
  }
}

/** Shares of the view before it at which the observer looks: often enough to see when it begins to stick. */
const STEPS = Array.from({length: 21}, (_, i) => i / 20)

export class Follower extends Column {
  static override __module__ = "gpuprof_widgets"

  static {
    this.prototype.default_view = FollowerView
  }
}

const FOLLOWER_CSS = `
:host {
  position: sticky; top: 0; z-index: 10; visibility: hidden; pointer-events: none;
  background: var(--gp-background, #fff); border-bottom: 1px solid var(--gp-line, #cfcfcf); box-shadow: 0 4px 6px -4px rgb(0 0 0 / 45%);
}
:host([data-shown]) { visibility: visible; pointer-events: auto; }
@media print { :host([data-shown]) { visibility: hidden; } }
`

/** Range and selection in one line, with the way back to the timeline. */
export class DetailsLineView extends PanelView {
  declare model: DetailsLine

  protected readonly css = LINE_CSS + STEPS_CSS
  private range: HTMLElement
  private chosen: HTMLElement
  private steps: InstanceSteps

  /** The traces, of which some hold the selection. */
  private get stores(): TraceStore[] {
    const {store, stores} = this.model
    return stores.length == 0 ? [store] : stores
  }

  private get choosers(): {store: TraceStore, selection: Selection}[] {
    return this.stores.flatMap((store) => store.selection == null ? [] : [{store, selection: store.selection}])
  }

  override connect_signals(): void {
    super.connect_signals()
    for (const store of this.stores) {
      this.connect(store.properties.window.change, () => this.show_range())
      this.connect(store.draft_changed, () => this.show_range())
      this.connect(store.selection_changed, () => this.show_selection())
    }
  }

  protected build_content(): Node[] {
    this.range = element("span", {class: "number"})
    this.chosen = element("span", {class: "clip chosen"})
    this.steps = new InstanceSteps(this.store)
    this.show_range()
    this.show_selection()
    const back = button("Back to the timeline", {title: "Scroll back to the timeline, with what is selected"}, () => this.go_back())
    const line = element("div", {class: "line", role: "group", "aria-label": "Range and selection"}, this.range, this.chosen, this.steps.el, back)
    for (const words of [this.range, this.chosen]) {
      words.addEventListener("click", () => this.go_back())
    }
    return [line]
  }

  private go_back(): void {
    const {store} = this.choosers[0] ?? this
    store.called_up.emit(true)
  }

  private show_range(): void {
    const {range, start, end, span} = this.store.range_totals
    const name = element("b", {}, range == null ? "Whole trace" : "Range")
    const text = format_range(start, end, this.store.data.header.tick_ns)
    this.range.replaceChildren(name, range == null ? ` ${format_ns(span)}` : ` ${text.start} to ${text.end} = ${text.length}`)
  }

  private show_selection(): void {
    const {choosers} = this
    const words = choosers.flatMap(({store, selection}, i): (Node | string)[] => [
      ...i == 0 ? [element("b", {}, ...title_of(selection)), " "] : [", "],
      element("span", {class: "muted"}, this.stores.length > 1 ? `${store.label}: ${extent_of(selection)}` : extent_of(selection)),
    ])
    this.chosen.replaceChildren(...words)
    this.chosen.title = this.chosen.textContent
    this.steps.update(choosers.every(({selection}) => selection.source != "timeline"))
  }
}

type DetailsLineProps = {stores: p.Property<TraceStore[]>}

export interface DetailsLine extends p.AttrsOf<DetailsLineProps> {}

export class DetailsLine extends Panel {
  static {
    this.prototype.default_view = DetailsLineView
    this.define<DetailsLineProps>(({List, Ref}) => ({stores: [List(Ref(TraceStore)), []]}))
  }
}

const LINE_CSS = `
.line { display: flex; align-items: center; gap: 10px; height: 30px; }
.line > * { flex: none; }
.line > span { cursor: pointer; }
.chosen { flex: 1 1 0; min-width: 0; }
code { font: 12px var(--mono); }
`
