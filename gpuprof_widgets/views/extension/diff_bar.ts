import type * as p from "@bokehjs/core/properties"

import {css} from "./colour"
import {GREW, SHRANK} from "./diff_colour"
import {DiffGraph} from "./diff_graph"
import {button, choice, element} from "./element"
import type {FlameSource} from "./engine"
import {Panel, PanelView} from "./panel"
import {BAR_CSS} from "./styles"

const MODES: [string, string, string][] = [
  ["both", "Difference", "As wide as the longer of the two, part by part: what is in either run is there"],
  ["a", "A", "Widths are the times of A"],
  ["b", "B", "Widths are the times of B"],
]
const SOURCES: Record<FlameSource, string> = {merged: "Python and ops", ops: "ops by nesting", cprofile: "Python by cProfile (estimate)"}

/** Title, legend, choices and breadcrumb of the differential flame graph. */
export class DiffBarView extends PanelView {
  declare model: DiffBar

  protected readonly css = BAR_CSS
  private about: HTMLElement
  private crumbs: HTMLElement
  private modes: HTMLButtonElement[]
  private together: HTMLButtonElement

  get graph(): DiffGraph {
    return this.model.graph
  }

  override async lazy_initialize(): Promise<void> {
    await super.lazy_initialize()
    await this.graph.prepare()
  }

  override connect_signals(): void {
    super.connect_signals()
    this.connect(this.graph.tree_changed, () => this.update())
  }

  protected build_content(): Node[] {
    const {graph} = this
    this.about = element("span", {class: "note"})
    this.crumbs = element("nav", {class: "crumbs", "aria-label": "Zoomed path"})
    this.modes = MODES.map(([mode, text, title]) => button(text, {title, "data-mode": mode}, () => { graph.mode = mode }))
    const title = "A range selected in one timeline is selected in the other too"
    this.together = button("Same range in both", {title}, () => {
      graph.runs.brushes_all = !graph.runs.brushes_all
      this.update()
    })
    this.together.hidden = graph.runs.stores.every(({data}) => data.rows == 0)
    const sources = graph.sources.map((source): [string, string] => [source, SOURCES[source]])
    const chooser = sources.length < 2 ? [] : [choice("Source", sources, graph.source, (source) => { graph.source = source })]
    this.update()
    return [
      element("div", {class: "row"}, element("h3", {}, "Differential flame graph"), this.about,
        element("div", {class: "row push"}, ...this.step_choice(), this.together,
          element("div", {class: "row", role: "group", "aria-label": "Widths"}, ...this.modes), ...chooser)),
      this.legend(),
      this.crumbs,
    ]
  }

  private legend(): HTMLUListElement {
    const entries = [[css(SHRANK), "− less in B, gone"], [css(GREW), "+ more in B, new"], ["var(--line)", "= the same"]]
    return element("ul", {class: "legend", "aria-label": "Colours of the differences"}, ...entries.map(([colour, text]) =>
      element("li", {}, element("span", {class: "swatch", style: `background:${colour}`}), text)))
  }

  /** The same step of both runs; where there are none, ranges are selected by hand. */
  private step_choice(): HTMLElement[] {
    const {graph} = this
    const count = Math.min(...[0, 1].map((side) => graph.steps[side]?.length ?? 0))
    if (count < 1) {
      return []
    }
    const each = Array.from({length: count}, (_, i): [string, string] => [String(i), `${i + 1}.`])
    const options: [string, string][] = [["", "all"], ...each]
    const chooser = choice("Step", options, "", (value) => this.show_step(value == "" ? null : Number(value)))
    this.connect(this.store.was_reset, () => { chooser.querySelector("select")!.value = "" })
    return [chooser]
  }

  private show_step(step: number | null): void {
    const {runs, steps} = this.graph
    const {brushes_all} = runs
    runs.brushes_all = false
    runs.stores.forEach((store, side) => store.brush(step == null ? null : steps[side][step]))
    runs.brushes_all = brushes_all
  }

  private update(): void {
    const {graph} = this
    this.about.textContent = graph.about
    for (const mode of this.modes) {
      mode.setAttribute("aria-pressed", String(mode.dataset.mode == graph.mode))
    }
    this.together.setAttribute("aria-pressed", String(graph.runs.brushes_all))
    const path = graph.path(graph.focus)
    this.crumbs.replaceChildren(...path.map((node) => {
      const text = `${node.name} ${graph.change_text(node)}`
      const current = node.id == graph.focus ? "true" : null
      return button(text, {class: "clip", title: text, "aria-current": current}, () => graph.zoom(node.id))
    }))
  }
}

export class DiffBar extends Panel {
  declare properties: DiffBar.Props
  declare __view_type__: DiffBarView

  static override __module__ = "gpuprof_widgets.views.models"

  static {
    this.prototype.default_view = DiffBarView
    this.define<DiffBar.Props>(({Ref}) => ({
      graph: [Ref(DiffGraph)],
    }))
  }
}

export namespace DiffBar {
  export type Attrs = p.AttrsOf<Props>
  export type Props = Panel.Props & {graph: p.Property<DiffGraph>}
}

export interface DiffBar extends DiffBar.Attrs {}
