import type * as p from "@bokehjs/core/properties"

import {GREW, SHRANK} from "./categories"
import {css} from "./colour"
import {DiffGraph} from "./diff_graph"
import {button, choice, element, legend} from "./element"
import {IcicleBarView} from "./flame_bar"
import {Panel} from "./panel"

/** Title, legend, choices and breadcrumb of the differential flame graph. */
export class DiffBarView extends IcicleBarView {
  declare model: DiffBar

  private same_range: HTMLButtonElement

  get graph(): DiffGraph {
    return this.model.graph
  }

  protected build_content(): Node[] {
    const {graph} = this
    const title = "A range selected in one timeline is selected in the other too"
    this.same_range = button("Same range in both", {title}, () => {
      graph.runs.brushes_all = !graph.runs.brushes_all
      this.update()
    })
    this.same_range.hidden = graph.runs.stores.every(({data}) => data.rows == 0)
    this.update()
    return [
      element("div", {class: "row"}, element("h3", {}, "Differential flame graph"), this.about,
        element("div", {class: "row push"}, ...this.step_choice(), this.same_range, ...this.source_choice(graph.sources))),
      legend("Colours of the differences", [[css(SHRANK), "− less in B, or gone"], [css(GREW), "+ more in B, or new"], ["var(--line)", "= the same"]]),
      this.crumbs,
    ]
  }

  /** Returns the choice of a step to compare in both runs; without steps, ranges are selected by hand. */
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

  protected update(): void {
    const {graph} = this
    this.about.textContent = graph.problem == "" ? graph.about : graph.problem
    this.same_range.setAttribute("aria-pressed", String(graph.runs.brushes_all))
    const {tree} = graph
    const path = tree.path(tree.focus)
    this.crumbs.replaceChildren(...path.map((node) => {
      const text = `${node.name} ${graph.change_text(node)}`
      const current = node.id == tree.focus ? "true" : null
      return button(text, {class: "clip", title: text, "aria-current": current}, () => graph.zoom(node.id))
    }))
  }
}

type DiffBarProps = {graph: p.Property<DiffGraph>}

export interface DiffBar extends p.AttrsOf<DiffBarProps> {}

export class DiffBar extends Panel {
  static {
    this.prototype.default_view = DiffBarView
    this.define<DiffBarProps>(({Ref}) => ({graph: [Ref(DiffGraph)]}))
  }
}
