import type * as p from "@bokehjs/core/properties"

import {MAX_LEVELS, type IcicleNode} from "./call_tree"
import {button, choice, element} from "./element"
import {
  flame_sources, flame_width, format_count, format_ns, format_share, has_library, totals,
  type FlameShape, type FlameSource, type FlameTime,
} from "./engine"
import {FlameGraph} from "./flame_graph"
import type {IcicleGraph} from "./icicle"
import {BAR_CSS, Panel, PanelView} from "./panel"

const SOURCES: Record<FlameSource, string> = {
  merged: "Python and ops",
  ops: "Ops",
  cprofile: "Python by cProfile (estimate)",
}

/** The bar above a flame graph: it follows the tree, and has a choice of the source and a breadcrumb. */
export abstract class IcicleBarView extends PanelView {
  protected readonly css = BAR_CSS
  protected readonly about = element("span", {class: "note"})
  protected readonly crumbs = element("div", {class: "crumbs", role: "group", "aria-label": "Zoomed path"})

  private source: HTMLSelectElement | null = null

  abstract get graph(): IcicleGraph<IcicleNode>

  protected abstract update(): void

  override async lazy_initialize(): Promise<void> {
    await super.lazy_initialize()
    await this.graph.prepare()
  }

  override connect_signals(): void {
    super.connect_signals()
    this.connect(this.graph.tree_changed, () => {
      if (this.source != null) {
        this.source.value = this.graph.source
      }
      this.update()
    })
  }

  protected source_choice(sources: FlameSource[]): Node[] {
    const options = sources.map((source): [string, string] => [source, SOURCES[source]])
    if (sources.length < 2) {
      return []
    }
    const chooser = choice("Source", options, this.graph.source, (source) => this.graph.show_source(source))
    this.source = chooser.querySelector("select")
    return [chooser]
  }
}

const WIDTHS: [FlameTime, string, string][] = [
  ["cpu", "CPU time", "Bars are as wide as the time in which they ran"],
  ["device", "GPU time", "Bars are as wide as the GPU time of the kernels, copies and memsets that they launched"],
]

const SWITCHES: [keyof FlameShape, string, string][] = [
  ["bottom_up", "Bottom up", "Functions and ops by self time, each with its callers below it (i)"],
  ["hides_library", "Hide libraries", "Leave out Python frames of libraries and built-ins; their self time counts for their callers"],
]

const ESTIMATE = "An estimate: cProfile records who called whom but not when, so paths are inferred and a selected range does not apply."

/** Title, source, widths and breadcrumb of the flame graph, and what a search found in it. */
export class FlameBarView extends IcicleBarView {
  declare model: FlameBar

  private matches: HTMLElement
  private widths: HTMLButtonElement[]
  private switches: HTMLButtonElement[]

  get graph(): FlameGraph {
    return this.model.graph
  }

  protected build_content(): Node[] {
    const {graph} = this
    this.matches = element("span", {class: "number muted", role: "status"})
    const sources = this.source_choice(flame_sources(this.store.data))
    this.widths = graph.has_gpu_time
      ? WIDTHS.map(([time, text, title]) => button(text, {title, "data-time": time}, () => { this.store.metric = time })) : []
    const widths = this.widths.length == 0 ? []
      : [element("div", {class: "row", role: "group", "aria-label": "Width"}, element("span", {}, "Width"), ...this.widths)]
    this.switches = SWITCHES.map(([key, text, title]) =>
      button(text, {title, "data-switch": key}, () => graph.reshape({[key]: !graph.shape[key]})))
    this.update()
    return [
      element("div", {class: "row"}, element("h3", {}, "Flame graph"), this.about,
        element("div", {class: "row push"}, this.matches, ...widths, ...sources)),
      element("div", {class: "row"},
        element("div", {class: "row", role: "group", "aria-label": "Shape of the flame graph"}, ...this.switches),
        this.crumbs),
    ]
  }

  private update_shape(): void {
    const {shape, source} = this.graph
    for (const button of this.switches) {
      const key = button.dataset.switch as keyof FlameShape
      button.setAttribute("aria-pressed", String(shape[key]))
      button.hidden = key == "hides_library" && !has_library(this.store.data, source as FlameSource)
    }
  }

  protected update(): void {
    const {source, width} = this.graph
    this.matches.textContent = this.matches_text()
    const about = source == "cprofile" ? ESTIMATE : this.range_text()
    this.about.textContent = this.graph.problem == "" ? about : this.graph.problem
    for (const button of this.widths) {
      button.setAttribute("aria-pressed", String(button.dataset.time == width))
      button.disabled = source == "cprofile" && button.dataset.time == "device"
    }
    this.update_shape()
    this.fill_crumbs()
  }

  private matches_text(): string {
    const {width, tree: {matched, matched_share, launching}} = this.graph
    if (matched == null) {
      return ""
    }
    const by_name = `${format_count(matched.size, "bar")} found, ${format_share(matched_share)} of the ${width == "cpu" ? "time" : "GPU time"}`
    const by_launch = `${format_count(launching.size, "bar")} launched a match`
    return [...matched.size > 0 || launching.size == 0 ? [by_name] : [], ...launching.size > 0 ? [by_launch] : []].join(" · ")
  }

  private range_text(): string {
    const {store: {window}, graph: {width, tree}} = this
    const shape = this.graph.shape.bottom_up ? "self times of functions, callers below: " : ""
    const time = width == "cpu" ? "CPU time" : this.gpu_time()
    const range = window == null ? "whole trace" : `selected range of ${format_ns(window[1] - window[0])}`
    const sum = flame_width(tree.nodes[0], width)
    const [start, end] = window ?? this.store.trace_bounds
    const in_all = width == "cpu" && sum > end - start ? "summed over threads" : "in all"
    return `${shape}${time}, ${range}: ${format_ns(sum)} ${in_all}`
  }

  /** Work of several streams or GPUs at once is more than the time in which they were busy. */
  private gpu_time(): string {
    const {data, range} = this.store
    const busy = totals(data, range).devices.map(({busy}) => busy).filter((busy) => busy > 0)
    const overlaps = this.graph.tree.nodes[0].device > busy.reduce((sum, ns) => sum + ns, 0)
    const summed_over = [...busy.length > 1 ? ["GPUs"] : [], ...overlaps ? ["streams that overlap"] : []]
    return summed_over.length == 0 ? "GPU time" : `GPU time summed over ${summed_over.join(" and ")}`
  }

  private fill_crumbs(): void {
    const {graph} = this
    const {tree} = graph
    const path = tree.path(tree.focus)
    const last = path.length - 1
    this.crumbs.replaceChildren(...path.flatMap((node, i) => {
      const name = button(node.name, {class: "clip", title: node.name, "aria-current": i == last ? "location" : null},
        () => graph.pick(node.id, true))
      return i == 0 ? [name] : [element("span", {class: "muted"}, graph.is_caller(node) ? "‹ called from" : "›"), name]
    }))
    if (last == 0) {
      const deeper = tree.levels > MAX_LEVELS ? ` Zoom in to see the deepest of the ${tree.levels} levels.` : ""
      const is_timed = this.store.data.rows > 0 && graph.source != "cprofile"
      const instances = is_timed ? "; its calls are highlighted on the timeline" : ""
      const hint = `Click a bar to zoom in${instances}.${deeper}`
      this.crumbs.append(element("span", {class: "hint clip", title: hint}, hint))
    }
  }
}

type FlameBarProps = {graph: p.Property<FlameGraph>}

export interface FlameBar extends p.AttrsOf<FlameBarProps> {}

export class FlameBar extends Panel {
  static {
    this.prototype.default_view = FlameBarView
    this.define<FlameBarProps>(({Ref}) => ({graph: [Ref(FlameGraph)]}))
  }
}
