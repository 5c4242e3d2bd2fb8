import type * as p from "@bokehjs/core/properties"
import {Signal0} from "@bokehjs/core/signaling"
import type {Context2d} from "@bokehjs/core/util/canvas"
import {Renderer} from "@bokehjs/models/renderers/renderer"

import {diff_paint} from "./diff_colour"
import {
  change_of, flame, flame_instances, flame_sources, format_change, format_count, format_ns, lay_out, paired_tree, width_in,
} from "./engine"
import type {DiffMode, DiffNode, FlameNode, FlameSource, Window} from "./engine"
import {IcicleView} from "./icicle"
import {short_name} from "./labels"
import {StoreGroup} from "./store_group"
import type {Fact} from "./tooltip"

const NAME_ROOM = 40

/** The differential icicle: widths of both runs or of one, colours by what changed. */
export class DiffGraphView extends IcicleView<DiffNode> {
  declare model: DiffGraph

  protected readonly title = "Differential flame graph"

  override connect_signals(): void {
    super.connect_signals()
    this.connect(this.model.runs.selection_changed, () => this.request_paint())
  }

  protected paint_for(node: DiffNode): {fill: string, ink: string} {
    return diff_paint(change_of(node), this.theme.palette)
  }

  /** The name on the left and the change on the right; a change that leaves no room for the name is left out. */
  protected paint_label(ctx: Context2d, node: DiffNode, x: number, y: number, width: number): void {
    const room = width - 8
    const change = this.model.change_text(node)
    const needed = ctx.measureText(change).width
    const fits = room > needed + NAME_ROOM
    this.labels.draw(ctx, node.name, x, y, room - (fits ? needed + 8 : 0), short_name(node.name, node.category))
    if (fits) {
      ctx.fillText(change, x + room - needed, y)
    }
  }

  protected facts({total, self, device, calls}: DiffNode): Fact[] {
    const pair = ([a, b]: [number, number]): string => `${format_ns(a)} → ${format_ns(b)} (${format_change(b - a)})`
    const count = (value: number): string => Number(value.toPrecision(4)).toLocaleString("en")
    const facts: Fact[] = [["Total, A → B", pair(total)], ["Self, A → B", pair(self)]]
    if (device[0] + device[1] > 0) {
      facts.push(["GPU time caused", pair(device)])
    }
    facts.push(["Calls, A → B", `${count(calls[0])} → ${count(calls[1])}`])
    return facts
  }
}

export class DiffGraph extends Renderer {
  declare properties: DiffGraph.Props
  declare __view_type__: DiffGraphView

  static override __module__ = "gpuprof_widgets.views.models"

  nodes: DiffNode[] = []
  focus = 0
  private chosen = -1
  /** How many whole steps each run's range holds; null where the ranges are compared as they are. */
  steps_compared: [number, number] | null = null
  tree_changed: Signal0<this>
  private trees: FlameNode[][] = [[], []]
  private prepared: Promise<void> | null = null

  constructor(attrs?: Partial<DiffGraph.Attrs>) {
    super(attrs)
  }

  static {
    this.prototype.default_view = DiffGraphView
    this.define<DiffGraph.Props>(({Float, List, Ref, Str, Tuple}) => ({
      runs: [Ref(StoreGroup)],
      mode: [Str, "both"],
      source: [Str, "ops"],
      steps: [List(List(Tuple(Float, Float))), []],
    }))
  }

  override initialize(): void {
    super.initialize()
    this.tree_changed = new Signal0(this, "tree_changed")
  }

  get store(): StoreGroup["stores"][number] {
    return this.runs.stores[0]
  }

  /** The sources that both runs have. */
  get sources(): FlameSource[] {
    const [a, b] = this.runs.stores.map(({data}) => flame_sources(data))
    return a.filter((source) => b.includes(source))
  }

  prepare(): Promise<void> {
    this.prepared ??= this.runs.ready.then(() => {
      this.setv({source: this.sources[0] ?? "ops"}, {silent: true})
      this.rebuild()
    })
    return this.prepared
  }

  override connect_signals(): void {
    super.connect_signals()
    for (const store of this.runs.stores) {
      this.connect(store.properties.window.change, () => this.rebuild())
    }
    this.connect(this.properties.source.change, () => this.rebuild())
    this.connect(this.properties.mode.change, () => this.relayout())
    this.connect(this.runs.selection_changed, () => this.follow_selection())
    this.connect(this.store.was_reset, () => this.zoom(0))
  }

  /** The range of one run: what is brushed there, else its steps from the first to the last, else everything. */
  range(side: number): Window {
    const store = this.runs.stores[side]
    const steps = this.steps[side] ?? []
    if (store.window != null || !this.per_step) {
      return store.range
    }
    const {data} = store
    return data.snap({start: data.tick(steps[0][0]), end: data.tick(steps[steps.length - 1][1])})
  }

  private get per_step(): boolean {
    return this.steps.length == 2 && this.steps.every((steps) => steps.length > 0)
  }

  /** Whole steps in each range; null unless both hold any. */
  private count_steps(ranges: Window[]): [number, number] | null {
    const counts = ranges.map(({start, end}, side) => {
      const {data} = this.runs.stores[side]
      const tick = (ns: number): number => Math.round(data.tick(ns))
      return (this.steps[side] ?? []).filter(([from, to]) => tick(from) >= start && tick(to) <= end).length
    })
    return counts.every((count) => count > 0) ? counts as [number, number] : null
  }

  private rebuild(): void {
    const path = this.path(this.focus).map(({name, category}) => `${category} ${name}`)
    const ranges = [0, 1].map((side) => this.range(side))
    this.steps_compared = this.per_step ? this.count_steps(ranges) : null
    const [a, b] = this.steps_compared ?? [1, 1]
    this.trees = this.runs.stores.map(({data}, side) => flame(data, ranges[side], this.source as FlameSource))
    this.nodes = paired_tree(this.trees[0], this.trees[1], [1 / a, 1 / b])
    this.chosen = -1
    lay_out(this.nodes, this.mode as DiffMode)
    this.focus = this.follow(path)
    this.tree_changed.emit()
  }

  private relayout(): void {
    lay_out(this.nodes, this.mode as DiffMode)
    const focused = this.nodes[this.focus]
    if (focused != null && width_in(focused, this.mode as DiffMode) == 0) {
      this.focus = 0
    }
    this.tree_changed.emit()
  }

  /** The deepest node along the path on which one stood before the tree changed. */
  private follow(path: string[]): number {
    let id = 0
    for (const step of path.slice(1)) {
      const next = this.children_of(id).find((child) => `${this.nodes[child].category} ${this.nodes[child].name}` == step)
      if (next == null) {
        break
      }
      id = next
    }
    return id
  }

  /** From left to right. */
  children_of(id: number): number[] {
    return this.nodes.filter(({parent}) => parent == id).sort((a, b) => a.x0 - b.x0 || a.x1 - b.x1).map((node) => node.id)
  }

  path(id: number): DiffNode[] {
    const path: DiffNode[] = []
    for (let node = this.nodes[id]; node != null; node = this.nodes[node.parent]) {
      path.unshift(node)
    }
    return path
  }

  /** What a label says of the change: never by colour alone. */
  change_text({total: [a, b], calls}: DiffNode): string {
    if (a == b) {
      return "="
    }
    const only = a == 0 && calls[0] == 0 ? " new" : b == 0 && calls[1] == 0 ? " gone" : ""
    return `${format_change(b - a)}${only}`
  }

  get tree(): this {
    return this
  }

  /** Of what has a width. */
  get levels(): number {
    return this.nodes.reduce((most, {depth, x0, x1}) => x1 > x0 ? Math.max(most, depth + 1) : most, 0)
  }

  get marked(): Set<number> {
    return new Set([this.chosen])
  }

  get cursor(): number {
    return this.chosen >= 0 && this.path(this.chosen).some(({id}) => id == this.focus) ? this.chosen : this.focus
  }

  zoom(id: number): void {
    if (this.nodes[id] != null) {
      this.focus = id
      this.tree_changed.emit()
    }
  }

  walk(id: number | undefined): boolean {
    if (id != null && id >= 0) {
      if (!this.path(id).some((node) => node.id == this.focus)) {
        this.focus = id
      }
      this.pick(id, false)
    }
    return true
  }

  /** Selects a path: its instances light up on both timelines. */
  pick(id: number, zoom: boolean): void {
    const node = this.nodes[id]
    if (node == null) {
      return
    }
    this.focus = zoom ? id : this.focus
    const key = this.path(id).map(({name}) => name).join("\n")
    this.runs.choose(this.runs.stores.map(({data}, side) => {
      const own = node.nodes[side]
      if (id == 0) {
        return null
      }
      const rows = own < 0 ? new Int32Array(0) : flame_instances(data, this.source as FlameSource, this.trees[side], own)
      const labels = new Set(Array.from(rows, (row) => data.label[row]))
      return {source: "flame", row: -1, rows, key, labels, text: node.name}
    }))
    this.chosen = id == 0 ? -1 : id
    this.tree_changed.emit()
  }

  /** What was selected elsewhere is not a path of this graph. */
  private follow_selection(): void {
    this.chosen = -1
  }

  /** What is compared, in words. */
  get about(): string {
    const whole = this.runs.stores.every(({window}) => window == null)
    const steps = this.steps_compared
    if (steps == null) {
      return whole ? "CPU time of the whole runs" : "CPU time of the selected ranges"
    }
    const [a, b] = steps.map((count) => format_count(count, "step"))
    return `CPU time per step, ${steps[0] == steps[1] ? `${a} of each` : `${a} of A, ${b} of B`}${whole ? "" : ", selected"}`
  }
}

export namespace DiffGraph {
  export type Attrs = p.AttrsOf<Props>
  export type Props = Renderer.Props & {
    runs: p.Property<StoreGroup>
    mode: p.Property<string>
    source: p.Property<string>
    steps: p.Property<[number, number][][]>
  }
}

export interface DiffGraph extends DiffGraph.Attrs {}
