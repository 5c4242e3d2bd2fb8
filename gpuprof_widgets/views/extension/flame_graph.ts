import type * as p from "@bokehjs/core/properties"
import type {Context2d} from "@bokehjs/core/util/canvas"
import {Renderer} from "@bokehjs/models/renderers/renderer"

import {paint_of, type BarPaint, type Paint} from "./categories"
import type {Fact} from "./element"
import {
  flame_sources, flame_width, format_count, format_ns, format_share, laid_out, merged_labels, totals, UNLAUNCHED,
  type FlameNode, type FlameSource, type FlameTime, type Store,
} from "./engine"
import {CallTree, has_width, IcicleGraph, IcicleView, MAX_LEVELS} from "./icicle"
import {short_name} from "./paint"
import {marked_rows, TraceStore, type Selection} from "./trace_store"

/** How many levels below a node that was brought into view stay visible. */
const LEVELS_BELOW = 3

/** The icicle of one record: colours by category. */
export class FlameGraphView extends IcicleView<FlameNode> {
  declare model: FlameGraph

  protected readonly title = "Flame graph"
  private readonly paints = new Map<string, BarPaint>()

  override connect_signals(): void {
    super.connect_signals()
    this.connect(this.model.store.selection_changed, () => this.request_paint())
    this.connect(this.theme.changed, () => this.paints.clear())
  }

  protected paint_for(node: FlameNode): Paint {
    const {matched, launching} = this.model.tree
    const paint = this.paint_of(node)
    const is_dim = matched != null && !matched.has(node.id) && !launching.has(node.id)
    return is_dim ? {fill: paint.dim_fill, ink: paint.dim_ink, outline: null} : paint
  }

  private paint_of({name, category}: FlameNode): BarPaint {
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

type FlameGraphProps = {
  store: p.Property<TraceStore>
  source: p.Property<string>
}

export interface FlameGraph extends p.AttrsOf<FlameGraphProps> {}

export class FlameGraph extends IcicleGraph<FlameNode> {
  declare properties: Renderer.Props & FlameGraphProps

  declare tree: FlameTree
  /** Call paths of what was selected in another view. */
  private paths = new Set<number>()

  static {
    this.prototype.default_view = FlameGraphView
    this.define<FlameGraphProps>(({Ref, Str}) => ({
      store: [Ref(TraceStore)],
      source: [Str, "ops"],
    }))
  }

  protected async load(): Promise<void> {
    const data = await this.store.ready
    this.tree = new FlameTree(data)
    this.setv({source: flame_sources(data)[0] ?? "ops"}, {silent: true})
    this.tree.replace(await this.list_nodes(), this.width)
    if (this.tree.nodes[0].total == 0 && this.has_gpu_time) {
      this.store.metric = "device"
    }
  }

  override connect_signals(): void {
    super.connect_signals()
    const {source} = this.properties
    this.connect(this.store.properties.window.change, () => this.rebuild())
    this.connect(source.change, () => this.follow_source())
    this.connect(this.store.properties.metric.change, () => this.relayout())
    this.connect(this.store.selection_changed, () => void this.follow_selection())
    this.connect(this.store.was_reset, () => this.reset())
  }

  /** Whether the record has GPU time in any range. */
  get has_gpu_time(): boolean {
    const {data} = this.store
    return totals(data, data.whole).devices.some(({busy}) => busy > 0)
  }

  /** The time that widths show: cProfile's calls have no GPU time. */
  get width(): FlameTime {
    return this.source == "cprofile" ? "cpu" : this.store.metric as FlameTime
  }

  private rebuild(): void {
    const failed = (error: unknown): FlameNode[] => [uncounted(this.tree.nodes[0], error)]
    const rebuilt = this.list_nodes().catch(failed).then((nodes) => {
      if (this.rebuilt === rebuilt) {
        const path = this.tree.path(this.chosen)
        this.tree.replace(nodes, this.width)
        this.chosen = this.tree.find(path)
        this.settle(() => this.refresh())
        this.update_facts()
      }
    })
    this.rebuilt = rebuilt
  }

  /** Shows another tree, in which a selection made elsewhere has other paths. */
  private follow_source(): void {
    this.paths = new Set()
    this.rebuild()
    void this.rebuilt.then(() => this.follow_selection())
  }

  private list_nodes(): Promise<FlameNode[]> {
    return this.store.ask("flame", {window: this.store.range, source: this.source as FlameSource}, this)
  }

  private relayout(): void {
    this.tree.lay_out(this.width)
    this.refresh()
    this.update_facts()
  }

  /** Shows the new numbers of the node that was selected here. */
  private update_facts(): void {
    if (this.store.selection?.source == "flame") {
      this.store.selection_changed.emit()
    }
  }

  private refresh(): void {
    this.tree.search(this.store.selection, this.paths)
    this.tree_changed.emit()
  }

  private reset(): void {
    this.tree.focus = 0
    this.chosen = -1
    this.tree_changed.emit()
  }

  /** The nodes of the selection, made here or in another view. */
  get marked(): Set<number> {
    const {selection} = this.store
    const {tree} = this
    if (selection == null || selection.source == "search") {
      return new Set()
    }
    if (selection.source == "flame") {
      return new Set(this.chosen >= 0 ? [this.chosen] : [])
    }
    if (marked_rows(selection).length == 1) {
      return new Set(tree.nodes.flatMap(({id, path}) => this.paths.has(path) ? id : []))
    }
    return new Set(tree.nodes.filter(({label}) => label >= 0 && selection.labels.has(label)).map(({id}) => id))
  }

  /** Brings into view the nodes of a selection made elsewhere, even where another node is zoomed. */
  private async follow_selection(): Promise<void> {
    const {store: {selection}, source} = this
    if (selection != null && selection.source != "flame") {
      this.chosen = -1
      const paths = await this.paths_of(selection)
      if (selection !== this.store.selection || source != this.source) {
        return
      }
      this.paths = paths
    }
    this.settle(() => {
      const [first] = selection?.source == "flame" ? [] : this.marked
      if (first != null) {
        this.reveal(first)
      }
      this.refresh()
    })
  }

  /** Returns the call paths of one selected event, or of what launched the GPU work that a search found. */
  private async paths_of(selection: Selection): Promise<Set<number>> {
    const {store: {data: {on_gpu}}, source} = this
    const marked = marked_rows(selection)
    const rows = selection.source == "search" ? selection.rows.filter((row) => on_gpu[row] == 1) : marked.length == 1 ? marked : []
    return rows.length == 0 ? new Set()
      : new Set(await this.store.ask("row_paths", {source: source as FlameSource, rows: Int32Array.from(rows)}, this))
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
    tree.uncover(id)
    if (!inside || !fits) {
      this.zoom(fits ? 0 : path[path.length - MAX_LEVELS + LEVELS_BELOW].id)
    }
  }

  pick(id: number, zoom: boolean): void {
    const node = this.tree.node(id)
    if (node == null) {
      return
    }
    this.chosen = id
    if (zoom) {
      this.tree.focus = id
    }
    this.tree_changed.emit()
    void this.choose(node)
  }

  private async choose(node: FlameNode): Promise<void> {
    const {store, source, tree} = this
    const path = tree.path(node.id)
    const rows = node.id == 0 ? null : await store.ask("path_instances", {source: source as FlameSource, path: node.path}, this)
    if (tree.find(path) == this.chosen) { // no other was picked meanwhile
      store.choose(rows == null ? null : {
        source: "flame", row: -1, rows, key: path.map(({name}) => name).join("\n"),
        labels: new Set([node.label]), text: node.name, facts: () => this.facts_at(path),
      })
    }
  }

  /** Returns the facts about the node at the end of a path; none where the range has no such node. */
  private facts_at(path: FlameNode[]): Fact[] {
    const id = this.tree.find(path)
    return id < 0 ? [] : this.facts(this.tree.nodes[id])
  }

  /** Returns both times of a node, that of its width first, with its share of the whole. */
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

/** Returns a root that says why there is no tree. */
function uncounted(root: FlameNode, error: unknown): FlameNode {
  const none = {calls: 0, total: 0, self: 0, device: 0, device_self: 0}
  return {...root, ...none, name: `This range could not be counted: ${String(error)}`}
}

/** The call tree of a range, and its nodes that a search found. */
export class FlameTree extends CallTree<FlameNode> {
  matched: Set<number> | null = null
  /** the nodes that launched GPU work that was found */
  launching = new Set<number>()
  /** Share of the whole in and under the matched nodes, counted once. */
  matched_share = 0

  constructor(private readonly store: Store) {
    super()
  }

  /** Shows the nodes of another range; the zoomed node is kept where it still has a width. */
  replace(nodes: FlameNode[], time: FlameTime): void {
    const path = this.path(this.focus)
    this.nodes = nodes
    this.focus = 0
    this.lay_out(time)
    this.focus = this.follow(path)
  }

  /** Lays the nodes out by a time. Where the zoomed node has none, the nearest node around it with a width is zoomed. */
  lay_out(time: FlameTime): void {
    laid_out(this.nodes, time)
    this.arrange()
    // By GPU time there is as much room as by CPU time.
    this.levels = this.nodes.reduce((most, node) => node.total > 0 || has_width(node) ? Math.max(most, node.depth + 1) : most, 1)
    while (this.focus > 0 && !has_width(this.nodes[this.focus])) {
      this.focus = this.nodes[this.focus].parent
    }
  }

  /** Returns the children of a node that have a width: from the longest to the shortest. */
  override children_of(id: number): number[] {
    return super.children_of(id).filter((child) => has_width(this.nodes[child]))
  }

  /** Marks the nodes that a search found, and those with the paths of what launched it; a node without slices is found by its name. */
  search(selection: Selection | null, launching: Set<number>): void {
    const {matches: test, labels} = selection ?? {}
    const merged = merged_labels(this.store)
    const found = new Set(Array.from(test == null ? [] : labels!, (label) => merged[label]))
    const matched = new Set<number>()
    const inside = new Uint8Array(this.nodes.length)
    let share = 0
    for (const {id, parent, label, name, x0, x1} of test == null ? [] : this.nodes.slice(1)) {
      const matches = label >= 0 ? found.has(label) : test!(name)
      if (matches) {
        matched.add(id)
        share += inside[parent] == 1 ? 0 : x1 - x0
      }
      inside[id] = Number(matches || inside[parent] == 1)
    }
    this.matched = test == null ? null : matched
    this.launching = new Set(test == null ? [] : this.nodes.flatMap(({id, path}) => launching.has(path) ? id : []))
    this.matched_share = share
  }
}
