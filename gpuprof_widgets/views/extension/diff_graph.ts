import type * as p from "@bokehjs/core/properties"
import type {Context2d} from "@bokehjs/core/util/canvas"
import {Renderer} from "@bokehjs/models/renderers/renderer"

import {CallTree, has_width} from "./call_tree"
import {diff_paint, type Paint} from "./categories"
import type {Fact} from "./element"
import {
  change_of, flame_sources, format_change, format_count, format_ns, lay_out, paired_tree,
  type DiffNode, type FlameNode, type FlameSource, type Window,
} from "./engine"
import {IcicleGraph, IcicleView, uncounted} from "./icicle"
import {short_name} from "./paint"
import {StoreGroup} from "./store_group"

const NAME_ROOM = 40

/** The differential icicle: widths of both runs, colours by the change. */
export class DiffGraphView extends IcicleView<DiffNode> {
  declare model: DiffGraph

  protected readonly title = "Differential flame graph"

  override connect_signals(): void {
    super.connect_signals()
    this.connect(this.model.runs.selection_changed, () => this.request_paint())
  }

  protected paint_for(node: DiffNode): Paint {
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
      facts.push(["GPU time, A → B", pair(device)])
    }
    facts.push(["Calls, A → B", `${count(calls[0])} → ${count(calls[1])}`])
    return facts
  }
}

/** The union of both runs' call trees. */
class DiffTree extends CallTree<DiffNode> {
  /** Takes the nodes of other ranges; the zoomed node is kept as far as its path is still there. */
  rebuild(nodes: DiffNode[]): void {
    const path = this.path(this.focus)
    this.nodes = nodes
    lay_out(nodes)
    this.arrange()
    this.levels = nodes.reduce((most, node) => has_width(node) ? Math.max(most, node.depth + 1) : most, 0)
    this.focus = this.follow(path)
  }
}

type DiffGraphProps = {
  runs: p.Property<StoreGroup>
  source: p.Property<string>
  steps: p.Property<[number, number][][]>
}

export interface DiffGraph extends p.AttrsOf<DiffGraphProps> {}

export class DiffGraph extends IcicleGraph<DiffNode> {
  declare properties: Renderer.Props & DiffGraphProps

  override readonly tree = new DiffTree()
  /** number of whole steps in each run's range; null where the ranges are compared as they are */
  steps_compared: [number, number] | null = null
  private trees: FlameNode[][] = [[], []]

  static {
    this.prototype.default_view = DiffGraphView
    this.define<DiffGraphProps>(({Float, List, Ref, Str, Tuple}) => ({
      runs: [Ref(StoreGroup)],
      source: [Str, "ops"],
      steps: [List(List(Tuple(Float, Float))), []],
    }))
  }

  get store(): StoreGroup["stores"][number] {
    return this.runs.stores[0]
  }

  /** The sources that both runs have. */
  get sources(): FlameSource[] {
    const [a, b] = this.runs.stores.map(({data}) => flame_sources(data))
    return a.filter((source) => b.includes(source))
  }

  protected async load(): Promise<void> {
    await this.runs.ready
    this.setv({source: this.sources[0] ?? "ops"}, {silent: true})
    this.rebuild()
    await this.rebuilt
  }

  override connect_signals(): void {
    super.connect_signals()
    for (const store of this.runs.stores) {
      this.connect(store.properties.window.change, () => this.rebuild())
    }
    this.connect(this.properties.source.change, () => this.rebuild())
    // A selection made elsewhere is no path of this graph.
    this.connect(this.runs.selection_changed, () => {
      if (!this.runs.stores.some(({selection}) => selection?.source == "flame")) {
        this.forget()
      }
    })
    this.connect(this.store.was_reset, () => this.zoom(0))
  }

  /** Returns the range of one run: the brushed one, else its steps from the first to the last, else everything. */
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

  /** Returns the number of whole steps in each range; null unless both hold any. */
  private count_steps(ranges: Window[]): [number, number] | null {
    const counts = ranges.map(({start, end}, side) => {
      const {data} = this.runs.stores[side]
      const tick = (ns: number): number => Math.round(data.tick(ns))
      return (this.steps[side] ?? []).filter(([from, to]) => tick(from) >= start && tick(to) <= end).length
    })
    return counts.every((count) => count > 0) ? counts as [number, number] : null
  }

  private rebuild(): void {
    const ranges = [0, 1].map((side) => this.range(side))
    const source = this.source as FlameSource
    const trees = this.runs.stores.map((store, side) => store.ask("flame", {window: ranges[side], source}, this))
    const listed = Promise.all(trees).then((trees) => {
      const steps = this.per_step ? this.count_steps(ranges) : null
      const [a, b] = steps ?? [1, 1]
      return {trees, steps, nodes: paired_tree(trees[0], trees[1], [1 / a, 1 / b])}
    })
    const failed = (error: unknown): Awaited<typeof listed> =>
      ({trees: [[], []], steps: null, nodes: [{...NO_PATH, name: uncounted(error)}]})
    const rebuilt = listed.catch(failed).then(({trees, steps, nodes}) => {
      if (this.rebuilt === rebuilt) {
        this.steps_compared = steps
        this.trees = trees
        this.tree.rebuild(nodes)
        this.forget()
        this.settle(() => this.tree_changed.emit())
      }
    })
    this.rebuilt = rebuilt
  }

  /** Returns the change as the label shows it: colour alone is not enough. */
  change_text(node: DiffNode): string {
    const {total: [a, b], calls, nodes} = node
    if (a == b) {
      return nodes.every((id) => id < 0) ? "" : "="
    }
    const [is_new, is_gone] = [a == 0 && calls[0] == 0, b == 0 && calls[1] == 0]
    return `${format_change(b - a)}${is_new ? " in B only" : is_gone ? " in A only" : ""}`
  }

  get marked(): Set<number> {
    const matches = this.runs.stores.find(({selection}) => selection?.source == "search")?.selection?.matches
    if (matches == null) {
      return new Set([this.chosen])
    }
    return new Set(this.tree.nodes.flatMap(({id, name}) => id > 0 && matches(name) ? id : []))
  }

  pick(id: number, zoom: boolean): void {
    const {tree} = this
    const node = tree.node(id)
    if (node == null) {
      return
    }
    tree.focus = zoom ? id : tree.focus
    this.chosen = id == 0 ? -1 : id
    this.tree_changed.emit()
    void this.choose(node)
  }

  private async choose(node: DiffNode): Promise<void> {
    const {tree, trees, runs: {stores}} = this
    const way = tree.path(node.id)
    const key = way.map(({name}) => name).join("\n")
    const rows = await this.answer(Promise.all(stores.map((store, side) => {
      const {paths} = trees[side][node.nodes[side]] ?? {paths: []}
      return store.ask("path_instances", {source: this.source as FlameSource, paths}, this)
    })), stores.map(() => new Int32Array(0)))
    if (node.id > 0 && tree.find(way) == this.chosen) { // no other was picked meanwhile
      this.selected = way
      this.runs.choose(stores.map(({data}, side) => {
        const labels = new Set(Array.from(rows[side], (row) => data.label[row]))
        return {source: "flame", row: -1, rows: rows[side], key, labels, text: node.name}
      }))
    } else if (node.id == 0 && this.chosen < 0) {
      this.selected = []
      this.runs.choose(stores.map(() => null))
    }
  }

  /** The compared times and ranges in words. */
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

/** The root of no tree. */
const NO_PATH: DiffNode = {
  id: 0, parent: -1, depth: 0, name: "", category: "", nodes: [-1, -1], calls: [0, 0], total: [0, 0], self: [0, 0],
  device: [0, 0], width: 0, x0: 0, x1: 0,
}
