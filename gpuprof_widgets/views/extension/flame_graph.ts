import type * as p from "@bokehjs/core/properties"
import {Signal0} from "@bokehjs/core/signaling"
import type {Context2d} from "@bokehjs/core/util/canvas"
import {Renderer, RendererView} from "@bokehjs/models/renderers/renderer"

import {paint_of} from "./categories"
import type {Paint} from "./categories"
import {css} from "./colour"
import {element} from "./element"
import {flame_sources, format_count, format_ns, format_share} from "./engine"
import type {FlameNode, FlameSource} from "./engine"
import {FlameTree} from "./flame_tree"
import {Labels, short_name} from "./labels"
import {matcher} from "./matcher"
import {paint_frame} from "./paint_frame"
import {PLOT_CSS} from "./styles"
import {Surface} from "./surface"
import {Tooltip} from "./tooltip"
import type {Fact} from "./tooltip"
import {TraceStore} from "./trace_store"

const ROW_HEIGHT = 19
export const MAX_LEVELS = 22
const MIN_LEVELS = 4
/** How many levels below a node that was brought into view stay visible. */
const LEVELS_BELOW = 3
const FONT = "11.5px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"

/** The icicle: root on top, widths are shares of the zoomed node's time. */
export class FlameGraphView extends RendererView {
  declare model: FlameGraph

  private surface: Surface
  private tooltip: Tooltip | null = null
  private readonly labels = new Labels(FONT)
  private readonly paints = new Map<string, Paint>()
  private readonly style_el = element("style", {}, PLOT_CSS)

  get store(): TraceStore {
    return this.model.store
  }

  get tree(): FlameTree {
    return this.model.tree
  }

  override async lazy_initialize(): Promise<void> {
    await super.lazy_initialize()
    await this.model.prepare()
    this.surface = new Surface({
      hover: ({x, y, event}) => this.hover(x, y, event),
      leave: () => this.tooltip?.hide(),
      click: ({x, y}) => this.model.pick(this.node_at(x, y), true),
      key: (event) => this.key(event),
    }, "Flame graph. Arrow keys walk the tree, Enter zooms in, Backspace zooms out, Escape resets.")
    this.resize()
  }

  override connect_signals(): void {
    super.connect_signals()
    this.connect(this.model.tree_changed, () => {
      this.resize()
      this.request_paint()
    })
    this.connect(this.store.selection_changed, () => this.request_paint())
    this.connect(this.store.theme.changed, () => {
      this.paints.clear()
      this.request_paint()
    })
  }

  override remove(): void {
    this.tooltip?.remove()
    this.surface.el.remove()
    this.style_el.remove()
    super.remove()
  }

  /** Tall enough for the tree; it only ever grows so that the table below does not jump about. */
  private resize(): void {
    const levels = Math.min(MAX_LEVELS, Math.max(MIN_LEVELS, this.tree.levels))
    this.plot_model.height = Math.max(this.plot_model.height ?? 0, levels * ROW_HEIGHT + 2)
  }

  private mount(): void {
    const {canvas_view, frame} = this.plot_view
    if (!this.surface.el.isConnected) {
      canvas_view.shadow_el.append(this.style_el, this.surface.el)
      canvas_view.events_el.tabIndex = -1
      this.tooltip ??= new Tooltip(this.root.el, this.root.shadow_el)
    }
    this.surface.place(frame.bbox)
  }

  protected _paint(ctx: Context2d): void {
    this.mount()
    paint_frame(ctx, this.plot_view, (width, height) => this.paint_tree(ctx, width, height))
  }

  private paint_tree(ctx: Context2d, width: number, height: number): void {
    ctx.font = FONT
    ctx.textBaseline = "middle"
    ctx.textAlign = "left"
    const focus = this.tree.node(this.tree.focus)
    const {marked} = this.model
    for (const node of focus == null ? [] : this.tree.nodes) {
      this.paint_node(ctx, node, focus!.depth, width, height, marked)
    }
  }

  private paint_node(ctx: Context2d, node: FlameNode, first: number, width: number, height: number, marked: Set<number>): void {
    const place = this.tree.place(node)
    const y = (node.depth - first) * ROW_HEIGHT
    if (place == null || y >= height || (place[1] - place[0]) * width < 0.3) {
      return
    }
    const [x0, x1] = [place[0] * width, place[1] * width]
    const {matched} = this.tree
    const dim = matched != null && !matched.has(node.id)
    const paint = this.paint_for(node)
    const room = x1 - x0 - (x1 - x0 > 3 ? 1 : 0)
    ctx.fillStyle = dim ? paint.dim_fill : paint.fill
    ctx.fillRect(x0, y, Math.max(room, 0.6), ROW_HEIGHT - 1)
    ctx.fillStyle = dim ? paint.dim_ink : paint.ink
    this.labels.draw(ctx, node.name, x0 + 4, y + ROW_HEIGHT / 2, room - 6, short_name(node.name, node.category))
    if (marked.has(node.id)) {
      ctx.strokeStyle = css(this.store.theme.palette.foreground)
      ctx.lineWidth = 2
      ctx.strokeRect(x0 + 1, y + 1, Math.max(room - 2, 1), ROW_HEIGHT - 3)
    }
  }

  private paint_for({name, category}: FlameNode): Paint {
    const key = `${category}\n${name}`
    let paint = this.paints.get(key)
    if (paint == null) {
      paint = paint_of(name, category, this.store.theme.palette.background)
      this.paints.set(key, paint)
    }
    return paint
  }

  private node_at(x: number, y: number): number {
    const {tree} = this
    const {width} = this.plot_view.frame.bbox
    const depth = (tree.node(tree.focus)?.depth ?? 0) + Math.floor(y / ROW_HEIGHT)
    const found = tree.nodes.find((node) => {
      const place = node.depth == depth ? tree.place(node) : null
      return place != null && x >= place[0] * width && x <= Math.max(place[1] * width, place[0] * width + 1)
    })
    return found?.id ?? -1
  }

  private hover(x: number, y: number, {clientX, clientY}: MouseEvent): void {
    const node = this.tree.node(this.node_at(x, y))
    this.surface.cursor(node == null ? "default" : "pointer")
    if (node == null) {
      this.tooltip?.hide()
    } else {
      this.tooltip?.show(node.name, this.facts(node), clientX, clientY)
    }
  }

  private facts(node: FlameNode): Fact[] {
    const whole = this.tree.nodes[0].total
    const share = whole > 0 ? ` (${format_share(node.total / whole)})` : ""
    const facts: Fact[] = [["Total", `${format_ns(node.total)}${share}`], ["Self", format_ns(node.self)]]
    if (node.device > 0) {
      facts.push(["GPU time caused", format_ns(node.device)])
    }
    if (node.calls > 0) {
      facts.push(["Calls", format_count(node.calls, "call")])
    }
    return facts
  }

  private key(event: KeyboardEvent): boolean {
    const {model, tree} = this
    const at = model.cursor
    const siblings = tree.children_of(tree.node(at)?.parent ?? -1)
    const place = siblings.indexOf(at)
    switch (event.key) {
      case "ArrowDown": return model.walk(tree.children_of(at)[0])
      case "ArrowUp": return model.walk(tree.node(at)?.parent)
      case "ArrowLeft": return model.walk(siblings[place - 1])
      case "ArrowRight": return model.walk(siblings[place + 1])
      case "Enter": model.zoom(at); return true
      case "Backspace": model.zoom(Math.max(0, tree.node(tree.focus)?.parent ?? 0)); return true
      case "Home": model.zoom(0); return true
      case "Escape": this.store.reset(); return true
      default: return false
    }
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
    })
    return this.prepared
  }

  override connect_signals(): void {
    super.connect_signals()
    const {source, search, search_as_regex} = this.properties
    this.connect(this.store.properties.window.change, () => this.rebuild())
    this.connect(source.change, () => this.rebuild())
    this.connect(search.change, () => this.refresh())
    this.connect(search_as_regex.change, () => this.refresh())
    this.connect(this.store.selection_changed, () => this.follow_selection())
    this.connect(this.store.was_reset, () => this.reset())
  }

  private rebuild(): void {
    this.chosen = -1
    this.tree.rebuild(this.store.range, this.source as FlameSource)
    this.refresh()
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
      labels: new Set([node.label]), text: node.name,
    })
    this.tree_changed.emit()
  }
}

export namespace FlameGraph {
  export type Attrs = p.AttrsOf<Props>
  export type Props = Renderer.Props & {
    store: p.Property<TraceStore>
    source: p.Property<string>
    search: p.Property<string>
    search_as_regex: p.Property<boolean>
  }
}

export interface FlameGraph extends FlameGraph.Attrs {}
