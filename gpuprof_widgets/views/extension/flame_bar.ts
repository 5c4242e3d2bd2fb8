import type * as p from "@bokehjs/core/properties"

import {button, choice, element} from "./element"
import {flame_sources, format_count, format_ns, format_share, matcher, totals} from "./engine"
import type {FlameSource, FlameTime} from "./engine"
import {FlameGraph} from "./flame_graph"
import {MAX_LEVELS} from "./icicle"
import {Panel, PanelView} from "./panel"
import {BAR_CSS} from "./styles"

const SOURCES: Record<FlameSource, string> = {
  merged: "Python and ops",
  ops: "ops by nesting",
  cprofile: "Python by cProfile (estimate)",
}

const WIDTHS: [FlameTime, string, string][] = [
  ["cpu", "CPU time", "Bars are as wide as the time in which they ran"],
  ["device", "GPU time", "Bars are as wide as the GPU work that they caused: kernels, copies and memsets"],
]

const ESTIMATE = "An estimate: cProfile records who called whom but not when, so paths are inferred and a selected range does not apply."

/** Title, source, widths, search and breadcrumb of the flame graph. */
export class FlameBarView extends PanelView {
  declare model: FlameBar

  protected readonly css = BAR_CSS
  private crumbs: HTMLElement
  private found: HTMLElement
  private about: HTMLElement
  private search: HTMLInputElement
  private widths: HTMLButtonElement[]

  get graph(): FlameGraph {
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
    this.crumbs = element("nav", {class: "crumbs", "aria-label": "Zoomed path"})
    this.found = element("span", {class: "number muted", role: "status"})
    this.about = element("span", {class: "note"})
    this.search = element("input", {type: "search", placeholder: "Search", "aria-label": "Search the flame graph", size: 18})
    this.search.addEventListener("input", () => { graph.search = this.search.value })
    const regex = button(".*", {title: "Read the search as a regular expression", "aria-label": "Regular expression", "aria-pressed": "false"}, () => {
      graph.search_as_regex = !graph.search_as_regex
      regex.setAttribute("aria-pressed", String(graph.search_as_regex))
    })
    const sources = flame_sources(this.store.data).map((source): [string, string] => [source, SOURCES[source]])
    const chooser = sources.length < 2 ? [] : [choice("Source", sources, graph.source, (source) => { graph.source = source })]
    this.widths = graph.has_gpu_time
      ? WIDTHS.map(([time, text, title]) => button(text, {title, "data-time": time}, () => { graph.time = time })) : []
    const widths = this.widths.length == 0 ? []
      : [element("div", {class: "row", role: "group", "aria-label": "Width"}, element("span", {}, "Width"), ...this.widths)]
    this.update()
    return [
      element("div", {class: "row"}, element("h3", {}, "Flame graph"), this.about,
        element("div", {class: "row push"}, this.found, this.search, regex, ...widths, ...chooser)),
      this.crumbs,
    ]
  }

  private update(): void {
    const {tree, search, search_as_regex, source, width} = this.graph
    const {error} = matcher(search, search_as_regex)
    if (this.search.value != search) {
      this.search.value = search
    }
    this.found.textContent = error ?? (tree.matched == null ? ""
      : `${format_count(tree.matched.size, "match").replace("matchs", "matches")}, ${format_share(tree.matched_share)} of the ${width == "cpu" ? "time" : "GPU time"}`)
    this.about.textContent = source == "cprofile" ? ESTIMATE : this.range_text()
    for (const one of this.widths) {
      one.setAttribute("aria-pressed", String(one.dataset.time == width))
      one.disabled = source == "cprofile" && one.dataset.time == "device"
    }
    this.fill_crumbs()
  }

  private range_text(): string {
    const {window} = this.store
    return `${this.graph.width == "cpu" ? "CPU time" : this.gpu_time()}, ${window == null ? "whole trace" : `selected range of ${format_ns(window[1] - window[0])}`}`
  }

  /** Work of several streams or GPUs at once is more than the time in which they were busy. */
  private gpu_time(): string {
    const {data, range} = this.store
    const busy = totals(data, range).devices.map(({busy}) => busy).filter((busy) => busy > 0)
    const overlaps = this.graph.tree.nodes[0].device > busy.reduce((sum, one) => sum + one, 0)
    const over = [...busy.length > 1 ? ["GPUs"] : [], ...overlaps ? ["streams that overlap"] : []]
    return over.length == 0 ? "GPU time" : `GPU time summed over ${over.join(" and ")}`
  }

  private fill_crumbs(): void {
    const {tree} = this.graph
    const path = tree.path(tree.focus)
    const last = path.length - 1
    this.crumbs.replaceChildren(...path.flatMap((node, i) => {
      const name = button(node.name, {class: "clip", title: node.name, "aria-current": i == last ? "location" : null},
        () => this.graph.pick(node.id, true))
      return i == 0 ? [name] : [element("span", {class: "muted"}, "›"), name]
    }))
    if (last == 0) {
      const deeper = tree.levels > MAX_LEVELS ? ` The deepest of the ${tree.levels} levels show when you zoom in.` : ""
      const instances = this.store.data.rows > 0 ? "; its instances light up on the timeline" : ""
      this.crumbs.append(element("span", {class: "muted"}, `Click a bar to zoom in${instances}.${deeper}`))
    }
  }
}

export class FlameBar extends Panel {
  declare properties: FlameBar.Props
  declare __view_type__: FlameBarView

  static override __module__ = "gpuprof_widgets.views.models"

  static {
    this.prototype.default_view = FlameBarView
    this.define<FlameBar.Props>(({Ref}) => ({
      graph: [Ref(FlameGraph)],
    }))
  }
}

export namespace FlameBar {
  export type Attrs = p.AttrsOf<Props>
  export type Props = Panel.Props & {graph: p.Property<FlameGraph>}
}

export interface FlameBar extends FlameBar.Attrs {}
