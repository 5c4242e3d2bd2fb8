import type * as p from "@bokehjs/core/properties"
import {Signal0} from "@bokehjs/core/signaling"
import type {Context2d} from "@bokehjs/core/util/canvas"
import {Renderer} from "@bokehjs/models/renderers/renderer"

import {paint_of} from "./categories"
import type {Paint} from "./categories"
import {flame_sources, flame_width, format_count, format_ns, format_share, matcher, totals, UNLAUNCHED} from "./engine"
import type {FlameNode, FlameSource, FlameTime} from "./engine"
import {FlameTree, has_width} from "./flame_tree"
import {IcicleView, MAX_LEVELS} from "./icicle"
import {short_name} from "./labels"
import type {Fact} from "./tooltip"
import {TraceStore} from "./trace_store"

/** How many levels below a node that was brought into view stay visible. */
const LEVELS_BELOW = 3

/** The icicle of one record: colours by category. */
export class FlameGraphView extends IcicleView<FlameNode> {
  declare model: FlameGraph

  protected readonly title = "Flame graph"
  private readonly paints = new Map<string, Paint>()

  override connect_signals(): void {
    super.connect_signals()
    this.connect(this.model.store.selection_changed, () => this.request_paint())
    this.connect(this.theme.changed, () => this.paints.clear())
  }

  protected paint_for(node: FlameNode): {fill: string, ink: string} {
    const {matched} = this.model.tree
    const paint = this.paint_of(node)
    return matched != null && !matched.has(node.id) ? {fill: paint.dim_fill, ink: paint.dim_ink} : paint
  }

  private paint_of({name, category}: FlameNode): Paint {
    const key = `${category}\n${name}`
    let paint = this.paints.get(key)
    if (paint == null) {
      paint = paint_of(name, category, this.theme.palette.background)
      this.paints.set(key, paint)
    }
    return paint
  }

  protected paint_label(ctx: Context2d, {name, category}: FlameNode, x: number, y: number, room: number): void {
    this.labels.draw(ctx, name, x, y, room - 6, short_name(name, category))
  }

  protected facts(node: FlameNode): Fact[] {
    return this.model.facts(node)
  }
}

export class FlameGraph extends Renderer {
  declare properties: FlameGraph.Props
  declare __view_type__: FlameGraphView

  static override __module__ = "gpuprof_widgets.views.models"

  tree: FlameTree
  tree_changed: Signal0<this>
  private prepared: Promise<void> | null = null
  private chosen = -1

  constructor(attrs?: Partial<FlameGraph.Attrs>) {
    super(attrs)
  }

  static {
    this.prototype.default_view = FlameGraphView
    this.define<FlameGraph.Props>(({Bool, Ref, Str}) => ({
      store: [Ref(TraceStore)],
      source: [Str, "ops"],
      time: [Str, "cpu"],
      search: [Str, ""],
      search_as_regex: [Bool, false],
    }))
  }

  override initialize(): void {
    super.initialize()
    this.tree_changed = new Signal0(this, "tree_changed")
  }

  prepare(): Promise<void> {
    this.prepared ??= this.store.ready.then((data) => {
      this.tree = new FlameTree(data)
      this.setv({source: flame_sources(data)[0] ?? "ops"}, {silent: true})
      this.rebuild()
      if (this.tree.nodes[0].total == 0 && this.has_gpu_time) {
        this.time = "device"
      }
    })
    return this.prepared
  }

  override connect_signals(): void {
    super.connect_signals()
    const {source, time, search, search_as_regex} = this.properties
    this.connect(this.store.properties.window.change, () => this.rebuild())
    this.connect(source.change, () => this.rebuild())
    this.connect(time.change, () => this.relayout())
    this.connect(search.change, () => this.refresh())
    this.connect(search_as_regex.change, () => this.refresh())
    this.connect(this.store.selection_changed, () => this.follow_selection())
    this.connect(this.store.was_reset, () => this.reset())
  }

  /** Whether the record has any, in whatever range. */
  get has_gpu_time(): boolean {
    const {data} = this.store
    return totals(data, data.whole).devices.some(({busy}) => busy > 0)
  }

  /** What widths are: cProfile's calls have none by GPU time. */
  get width(): FlameTime {
    return this.source == "cprofile" ? "cpu" : this.time as FlameTime
  }

  private rebuild(): void {
    const path = this.tree.path(this.chosen)
    this.tree.rebuild(this.store.range, this.source as FlameSource, this.width)
    this.chosen = this.tree.find(path)
    this.refresh()
    this.tell_facts()
  }

  private relayout(): void {
    this.tree.lay_out(this.width)
    this.refresh()
    this.tell_facts()
  }

  /** What was selected here has other numbers now. */
  private tell_facts(): void {
    if (this.store.selection?.source == "flame") {
      this.store.selection_changed.emit()
    }
  }

  private refresh(): void {
    const {test, error} = matcher(this.search, this.search_as_regex)
    this.tree.search(this.search == "" || error != null ? null : test)
    this.tree_changed.emit()
  }

  private reset(): void {
    this.tree.focus = 0
    this.chosen = -1
    this.search = ""
    this.tree_changed.emit()
  }

  /** The node that the keyboard stands on. */
  get cursor(): number {
    return this.chosen >= 0 && this.tree.contains(this.tree.focus, this.chosen) ? this.chosen : this.tree.focus
  }

  /** The nodes of what is selected, wherever it was selected. */
  get marked(): Set<number> {
    const {selection} = this.store
    const {tree} = this
    if (selection == null) {
      return new Set()
    }
    if (selection.source == "flame") {
      return new Set(this.chosen >= 0 ? [this.chosen] : [])
    }
    if (selection.row >= 0) {
      const node = tree.node_of(selection.row)
      return new Set(node > 0 ? [node] : [])
    }
    return new Set(tree.nodes.filter(({label}) => label >= 0 && selection.labels.has(label)).map(({id}) => id))
  }

  /** What was selected elsewhere comes into view, even where the view is zoomed onto something else. */
  private follow_selection(): void {
    const {selection} = this.store
    if (selection != null && selection.source != "flame") {
      this.chosen = -1
      const [first] = this.marked
      if (first != null) {
        this.reveal(first)
      }
    }
  }

  private reveal(id: number): void {
    const {tree} = this
    if (!has_width(tree.nodes[id])) {
      return
    }
    const path = tree.path(id)
    const inside = path.some((node) => node.id == tree.focus)
    const top = inside ? tree.node(tree.focus)?.depth ?? 0 : 0
    const fits = path.length - top <= MAX_LEVELS
    if (!inside || !fits) {
      this.zoom(fits ? 0 : path[path.length - MAX_LEVELS + LEVELS_BELOW].id)
    }
  }

  zoom(id: number): void {
    if (this.tree.node(id) != null) {
      this.tree.focus = id
      this.tree_changed.emit()
    }
  }

  walk(id: number | undefined): boolean {
    if (id != null && id >= 0) {
      if (!this.tree.contains(this.tree.focus, id)) {
        this.tree.focus = id
      }
      this.pick(id, false)
    }
    return true
  }

  /** Selects a node: all its instances light up on the timeline. */
  pick(id: number, zoom: boolean): void {
    const node = this.tree.node(id)
    if (node == null) {
      return
    }
    this.chosen = id
    if (zoom) {
      this.tree.focus = id
    }
    this.store.choose(id == 0 ? null : {
      source: "flame", row: -1, rows: this.tree.instances(id), key: this.tree.path(id).map(({name}) => name).join("\n"),
      labels: new Set([node.label]), text: node.name, facts: () => this.chosen < 0 ? [] : this.facts(this.tree.nodes[this.chosen]),
    })
    this.tree_changed.emit()
  }

  /** Both times of a node, that which it is as wide as first, with its share of the whole. */
  facts(node: FlameNode): Fact[] {
    const {width} = this
    const whole = flame_width(this.tree.nodes[0], width)
    const share = (time: FlameTime): string => time == width && whole > 0 ? ` (${format_share(flame_width(node, time) / whole)})` : ""
    const cpu: Fact[] = [["CPU total", `${format_ns(node.total)}${share("cpu")}`], ["CPU self", format_ns(node.self)]]
    const gpu: Fact[] = [["GPU total", `${format_ns(node.device)}${share("device")}`], ["GPU self", format_ns(node.device_self)]]
    if (node.category == UNLAUNCHED) {
      return [gpu[0], ["GPU events", String(node.calls)]]
    }
    const times = width == "device" ? [...gpu, ...cpu] : node.device > 0 ? [...cpu, ...gpu] : cpu
    return node.calls > 0 ? [...times, ["Calls", format_count(node.calls, "call")]] : times
  }
}

export namespace FlameGraph {
  export type Attrs = p.AttrsOf<Props>
  export type Props = Renderer.Props & {
    store: p.Property<TraceStore>
    source: p.Property<string>
    time: p.Property<string>
    search: p.Property<string>
    search_as_regex: p.Property<boolean>
  }
}

export interface FlameGraph extends FlameGraph.Attrs {}
