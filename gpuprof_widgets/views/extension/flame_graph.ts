import type * as p from "@bokehjs/core/properties"
import type {Context2d} from "@bokehjs/core/util/canvas"
import {Renderer} from "@bokehjs/models/renderers/renderer"

import {has_width, MAX_LEVELS} from "./call_tree"
import {paint_of, type BarPaint, type Paint} from "./categories"
import type {Fact} from "./element"
import {
  flame_sources, flame_width, format_count, format_ns, format_share, PLAIN, totals, UNLAUNCHED,
  type FlameNode, type FlameShape, type FlameSource, type FlameTime, type State,
} from "./engine"
import {FlameTree} from "./flame_tree"
import {IcicleGraph, IcicleView, uncounted} from "./icicle"
import {short_name} from "./paint"
import type {Selection} from "./report_state"
import {marked_rows} from "./selection"
import {TraceStore} from "./trace_store"

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

  protected override key(event: KeyboardEvent): boolean {
    const {model} = this
    switch (event.key) {
      case "i": model.reshape({bottom_up: !model.shape.bottom_up}); return true
      default: return super.key(event)
    }
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
  shape: FlameShape = PLAIN
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
    this.tree.replace(await this.list_nodes(), this.width, {shape: this.shape, chosen: -1})
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
    const failed = (error: unknown): FlameNode[] => [{...this.tree.nodes[0], ...NOTHING, name: uncounted(error)}]
    const rebuilt = this.list_nodes().catch(failed).then((nodes) => {
      if (this.rebuilt === rebuilt) {
        this.chosen = this.tree.replace(nodes, this.width, {shape: this.shape, chosen: this.chosen})
        this.selected = this.tree.path(this.chosen)
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
    return this.store.ask("flame", {window: this.store.range, source: this.source as FlameSource, shape: this.shape}, this)
  }

  /** Shows the tree in another shape. */
  reshape(change: Partial<FlameShape>): void {
    this.shape = {...this.shape, ...change}
    this.rebuild()
    this.store.journal.note()
  }

  override remember(): State {
    const {shape, source} = this
    const {marks, restore} = super.remember()
    return {
      marks: [...marks, JSON.stringify(shape)],
      restore: () => {
        if (source != this.source) {
          this.shape = shape
          this.forget() // call paths are numbered by source
        } else if (shape !== this.shape) {
          this.shape = shape
          this.rebuild()
        }
        restore()
      },
    }
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
    this.forget()
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
      return tree.with_paths(this.paths)
    }
    return new Set(tree.nodes.filter(({label}) => label >= 0 && selection.labels.has(label)).map(({id}) => id))
  }

  /** Brings into view the nodes of a selection made elsewhere, even where another node is zoomed. */
  private async follow_selection(): Promise<void> {
    const {store: {selection}, source} = this
    this.problem = ""
    if (selection != null && selection.source != "flame") {
      this.forget()
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
      : new Set(await this.answer(this.store.ask("row_paths", {source: source as FlameSource, rows: Int32Array.from(rows)}, this), NO_ROWS))
  }

  private reveal(id: number): void {
    const {tree} = this
    if (!has_width(tree.nodes[id])) {
      return
    }
    const path = tree.path(id)
    if (!tree.reaches(id)) {
      tree.focus = 0
      this.zoom(tree.reaches(id) ? 0 : path[Math.max(1, path.length - MAX_LEVELS + LEVELS_BELOW)].id)
    }
  }

  pick(id: number, zoom: boolean): void {
    const node = this.tree.node(id)
    if (node == null) {
      return
    }
    this.chosen = id
    this.problem = ""
    if (zoom) {
      this.tree.focus = id
    }
    this.tree_changed.emit()
    void this.choose(node)
  }

  private async choose(node: FlameNode): Promise<void> {
    const {store, source, tree} = this
    const {shape} = tree
    const path = tree.path(node.id)
    const is_root = node.id == 0
    const rows = is_root ? null : await this.answer(store.ask("path_instances", {source: source as FlameSource, paths: node.paths}, this), NO_ROWS)
    const called = this.is_caller(node) ? path[1] : node
    if (tree.find(path) == this.chosen) { // no other was picked meanwhile
      this.selected = path
      store.choose(rows == null ? null : {
        source: "flame", row: -1, rows, key: path.map(({name}) => name).join("\n"), labels: new Set([called.label]),
        text: called === node ? node.name : `${called.name}, called from ${node.name}`,
        facts: () => this.facts_at(shape === tree.shape ? tree.find(path) : this.chosen),
      })
    }
  }

  private facts_at(id: number): Fact[] {
    return id < 0 ? [] : this.facts(this.tree.nodes[id])
  }

  /** Whether a node is a caller of the function to which its numbers belong. */
  is_caller({depth}: FlameNode): boolean {
    return this.shape.bottom_up && depth > 1
  }

  /** Returns both times of a node, that of its width first, with its share of the whole. */
  facts(node: FlameNode): Fact[] {
    const {width, shape: {bottom_up}} = this
    const whole = flame_width(this.tree.nodes[0], width)
    const share = (time: FlameTime): string => time == width && whole > 0 ? ` (${format_share(flame_width(node, time) / whole)})` : ""
    const both = (unit: string, time: FlameTime, total: number, self: number): Fact[] => {
      const facts: Fact[] = [[`${unit} total`, `${format_ns(total)}${share(time)}`], [`${unit} self`, format_ns(self)]]
      return bottom_up && node.id > 0 ? [[`${unit} self`, facts[0][1]]] : facts
    }
    const cpu = both("CPU", "cpu", node.total, node.self)
    const gpu = both("GPU", "device", node.device, node.device_self)
    if (node.category == UNLAUNCHED) {
      return [gpu[0], ["GPU events", String(node.calls)]]
    }
    const times = width == "device" ? [...gpu, ...cpu] : node.device > 0 ? [...cpu, ...gpu] : cpu
    return node.calls > 0 ? [...times, ["Calls", format_count(node.calls, "call")]] : times
  }
}

const NO_ROWS = new Int32Array(0)

/** The numbers of a root without a tree. */
const NOTHING = {calls: 0, total: 0, self: 0, device: 0, device_self: 0}
