import {Signal0} from "@bokehjs/core/signaling"
import type {Context2d} from "@bokehjs/core/util/canvas"
import {Renderer} from "@bokehjs/models/renderers/renderer"

import {MAX_LEVELS, ROUNDING, type CallTree, type IcicleNode} from "./call_tree"
import type {Paint} from "./categories"
import {css} from "./colour"
import {Tooltip, type Fact} from "./element"
import type {State} from "./engine"
import {UNDO_KEYS, type Layer, type Part} from "./journal"
import {fill_bar, Labels, paint_frame} from "./paint"
import {Surface, SurfaceView} from "./surface"
import type {Theme} from "./theme"
import type {TraceStore} from "./trace_store"

const ROW_HEIGHT = 19
const MIN_LEVELS = 4
const FONT = "11.5px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"

/** The model of an icicle: its tree, zoomed and walked, and the node that is selected in it. */
export abstract class IcicleGraph<Node extends IcicleNode> extends Renderer implements Part {
  static override __module__ = "gpuprof_widgets"

  tree: CallTree<Node>
  tree_changed: Signal0<this>
  /** the node that was selected here, -1 for none */
  protected chosen = -1
  /** The path of the node whose instances are selected: they come a moment after the node was chosen. */
  protected selected: Node[] = []
  /** Comes when the tree is that of the present range, a moment after the range has changed. */
  protected rebuilt: Promise<void> = Promise.resolve()
  /** Why calls or paths that were asked for last are not shown; "" where they are. */
  problem = ""
  private is_settling = false
  private prepared: Promise<void> | null = null

  /** The store whose theme and journal the icicle has. */
  abstract store: TraceStore
  /** The `FlameSource` of the tree. */
  abstract source: string
  /** The outlined nodes. */
  abstract get marked(): Set<number>
  /** Selects a node: all its instances light up on the timeline. */
  abstract pick(id: number, zoom: boolean): void
  protected abstract load(): Promise<void>

  override initialize(): void {
    super.initialize()
    this.tree_changed = new Signal0(this, "tree_changed")
  }

  override connect_signals(): void {
    super.connect_signals()
    this.connect(this.tree_changed, () => this.is_settling ? this.store.journal.settle() : this.store.journal.note())
  }

  /** Has no node chosen. */
  protected forget(): void {
    this.chosen = -1
    this.selected = []
  }

  /** Makes a change that follows from an earlier one, whenever it comes: it is no step by itself. */
  protected settle(change: () => void): void {
    this.is_settling = true
    try {
      change()
    } finally {
      this.is_settling = false
    }
  }

  /** Returns the answer of the engine; where it fails, nothing, and the heading says why. */
  protected async answer<T>(asked: Promise<T>, nothing: T): Promise<T> {
    this.tell("")
    try {
      return await asked
    } catch (error) {
      this.tell(`The calls could not be found: ${String(error)}`)
      return nothing
    }
  }

  /** Puts a problem, or that there is none any more, into the heading. */
  private tell(problem: string): void {
    if (problem != this.problem) {
      this.problem = problem
      this.settle(() => this.tree_changed.emit())
    }
  }

  prepare(): Promise<void> {
    return this.prepared ??= this.load().then(() => this.store.journal.join(this))
  }

  remember(): State {
    const {tree, selected, source} = this
    const focus = tree.path(tree.focus)
    return {
      marks: [source, ...focus.map(({category, name}) => `${category}\n${name}`)],
      restore: () => {
        this.source = source
        void this.rebuilt.then(() => {
          tree.focus = tree.follow(focus)
          this.selected = selected
          this.chosen = tree.find(selected)
          this.settle(() => this.tree_changed.emit())
        })
      },
    }
  }

  /** Shows the tree of another source. */
  show_source(source: string): void {
    this.source = source
    this.store.journal.note()
  }

  clear(layer: Layer): boolean {
    const is_zoomed = layer == "zoom" && this.tree.focus > 0
    if (is_zoomed) {
      this.zoom(0)
    }
    return is_zoomed
  }

  /** The node on which the keyboard stands. */
  get cursor(): number {
    return this.chosen >= 0 && this.tree.contains(this.tree.focus, this.chosen) ? this.chosen : this.tree.focus
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
}

/** An icicle on a figure: the root on top, widths as shares of the zoomed node. */
export abstract class IcicleView<Node extends IcicleNode> extends SurfaceView {
  declare model: IcicleGraph<Node>

  protected readonly labels = new Labels(FONT)
  private tooltip: Tooltip | null = null
  private resizing = 0

  protected abstract readonly title: string
  protected abstract paint_for(node: Node): Paint
  protected abstract paint_label(ctx: Context2d, node: Node, x: number, y: number, room: number): void
  protected abstract facts(node: Node): Fact[]

  private get tree(): CallTree<Node> {
    return this.model.tree
  }

  protected get theme(): Theme {
    return this.model.store.theme
  }

  override async lazy_initialize(): Promise<void> {
    await super.lazy_initialize()
    await this.model.prepare()
    this.surface = new Surface({
      hover: ({x, y, event}) => this.hover(x, y, event),
      leave: () => this.tooltip?.hide(),
      click: ({x, y}) => this.model.pick(this.node_at(x, y), true),
      key: (event) => this.key(event),
    }, `${this.title}. Arrow keys walk the tree, Enter zooms in, Home zooms out. ${UNDO_KEYS}`)
    this.model.store.keyed_views.add("flame graph")
    this.resize()
  }

  override connect_signals(): void {
    super.connect_signals()
    const {visible, properties, selection_changed} = this.model.store
    for (const signal of [this.model.tree_changed, visible.change, properties.window.change, selection_changed]) {
      this.connect(signal, () => this.tooltip?.hide())
    }
    this.connect(this.model.tree_changed, () => {
      this.resize_later()
      this.request_paint()
    })
    this.connect(this.theme.changed, () => this.request_paint())
  }

  override remove(): void {
    this.tooltip?.remove()
    super.remove()
  }

  /** Changes the height once the bars are painted: the layout of the page takes longer than they do. */
  private resize_later(): void {
    cancelAnimationFrame(this.resizing)
    this.resizing = requestAnimationFrame(() => setTimeout(() => this.resize()))
  }

  /** Makes room for the whole tree, also where a part of it is zoomed: nothing moves under a click. */
  private resize(): void {
    this.plot_model.height = Math.min(MAX_LEVELS, Math.max(MIN_LEVELS, this.tree.levels)) * ROW_HEIGHT + 2
  }

  /** The zoomed node, on the topmost level. */
  private get top(): Node {
    return this.tree.nodes[this.tree.focus]
  }

  /** Returns the horizontal place of a node in the zoomed view, 0 to 1; null where it is not in it. */
  private place({x0, x1, depth}: Node): [number, number] | null {
    const {x0: start, x1: end} = this.top
    const width = end - start
    if (width <= 0 || depth < this.top.depth || x1 <= start + ROUNDING || x0 >= end - ROUNDING) {
      return null
    }
    return [Math.max(0, (x0 - start) / width), Math.min(1, (x1 - start) / width)]
  }

  protected _paint(ctx: Context2d): void {
    this.mount()
    this.tooltip ??= new Tooltip(this.root.el, this.root.shadow_el)
    paint_frame(ctx, this.plot_view, (width, height) => this.paint_tree(ctx, width, height))
  }

  private paint_tree(ctx: Context2d, width: number, height: number): void {
    ctx.font = FONT
    ctx.textBaseline = "middle"
    ctx.textAlign = "left"
    const {top, model: {marked}} = this
    for (const node of this.tree.nodes) {
      const y = (node.depth - top.depth) * ROW_HEIGHT
      const place = this.place(node)
      if (place != null && y < height && (place[1] - place[0]) * width >= 0.3) {
        this.paint_node(ctx, node, place[0] * width, place[1] * width, y, marked.has(node.id))
      }
    }
  }

  private paint_node(ctx: Context2d, node: Node, x0: number, x1: number, y: number, is_marked: boolean): void {
    const paint = this.paint_for(node)
    const room = x1 - x0 - (x1 - x0 > 3 ? 1 : 0)
    fill_bar(ctx, paint, x0, y, Math.max(room, 0.6), ROW_HEIGHT - 1)
    ctx.fillStyle = paint.ink
    this.paint_label(ctx, node, x0 + 4, y + ROW_HEIGHT / 2, room)
    if (is_marked) {
      ctx.strokeStyle = css(this.theme.palette.foreground)
      ctx.lineWidth = 2
      ctx.strokeRect(x0 + 1, y + 1, Math.max(room - 2, 1), ROW_HEIGHT - 3)
    }
  }

  private node_at(x: number, y: number): number {
    const {width} = this.plot_view.frame.bbox
    const level = this.top.depth + Math.floor(y / ROW_HEIGHT)
    const pointed = this.tree.nodes.find((node) => {
      const place = node.depth == level ? this.place(node) : null
      return place != null && place[1] > place[0] && x >= place[0] * width && x <= Math.max(place[1] * width, place[0] * width + 1)
    })
    return pointed?.id ?? -1
  }

  private hover(x: number, y: number, {clientX, clientY}: MouseEvent): void {
    const node = this.tree.nodes[this.node_at(x, y)]
    this.surface.cursor(node == null ? "default" : "pointer")
    if (node == null) {
      this.tooltip?.hide()
    } else {
      const top = this.surface.el.getBoundingClientRect().top + (node.depth - this.top.depth) * ROW_HEIGHT
      this.tooltip?.show(node.name, this.facts(node), clientX, clientY, {top, bottom: top + ROW_HEIGHT})
    }
  }

  protected key(event: KeyboardEvent): boolean {
    const {model, tree} = this
    const at = model.cursor
    const siblings = tree.siblings_of(at)
    const place = siblings.indexOf(at)
    switch (event.key) {
      case "ArrowDown": return model.walk(tree.children_of(at)[0])
      case "ArrowUp": return model.walk(tree.nodes[at].parent)
      case "ArrowLeft": return model.walk(siblings[place - 1])
      case "ArrowRight": return model.walk(siblings[place + 1])
      case "Enter": model.zoom(at); return true
      case "Home": model.zoom(0); return true
      default: return false
    }
  }
}

/** Returns the name of a root that says why there is no tree. */
export function uncounted(error: unknown): string {
  return `This range could not be counted: ${String(error)}`
}
