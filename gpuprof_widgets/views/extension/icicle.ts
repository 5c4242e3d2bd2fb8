import type {Signal0} from "@bokehjs/core/signaling"
import type {Context2d} from "@bokehjs/core/util/canvas"
import {RendererView} from "@bokehjs/models/renderers/renderer"
import type {Renderer} from "@bokehjs/models/renderers/renderer"

import {css} from "./colour"
import {element} from "./element"
import {Labels} from "./labels"
import {paint_frame} from "./paint_frame"
import {PLOT_CSS} from "./styles"
import {Surface} from "./surface"
import type {Theme} from "./theme"
import {Tooltip} from "./tooltip"
import type {Fact} from "./tooltip"
import type {TraceStore} from "./trace_store"

const ROW_HEIGHT = 19
export const MAX_LEVELS = 22
const MIN_LEVELS = 4
const FONT = "11.5px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"

/** `x0`, `x1`: its place from left to right, the root's is the whole. */
export type IcicleNode = {id: number, parent: number, depth: number, name: string, x0: number, x1: number}

/** A tree of calls and where one stands in it; the ids of nodes are their places. */
export interface Icicle<Node extends IcicleNode> {
  readonly nodes: readonly Node[]
  /** the zoomed node */
  readonly focus: number
  /** how many there is room for, as far as that goes */
  readonly levels: number
  /** From left to right. */
  children_of(id: number): number[]
}

/** The tree of one or more records, and what a click or a key does. */
export interface Walker<Node extends IcicleNode> {
  readonly tree: Icicle<Node>
  readonly tree_changed: Signal0<object>
  /** Where Escape is heard, and whose colours it has. */
  readonly store: TraceStore
  /** The node that the keyboard stands on. */
  readonly cursor: number
  /** The nodes that are outlined. */
  readonly marked: Set<number>
  prepare(): Promise<void>
  zoom(id: number): void
  walk(id: number | undefined): boolean
  pick(id: number, zoom: boolean): void
}

/** An icicle on a figure: root on top, widths are shares of the zoomed node's. */
export abstract class IcicleView<Node extends IcicleNode> extends RendererView {
  declare model: Renderer & Walker<Node>

  protected readonly labels = new Labels(FONT)
  private surface: Surface
  private tooltip: Tooltip | null = null
  private readonly style_el = element("style", {}, PLOT_CSS)

  protected abstract readonly title: string
  protected abstract paint_for(node: Node): {fill: string, ink: string}
  protected abstract paint_label(ctx: Context2d, node: Node, x: number, y: number, room: number): void
  protected abstract facts(node: Node): Fact[]

  private get tree(): Icicle<Node> {
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
    }, `${this.title}. Arrow keys walk the tree, Enter zooms in, Backspace zooms out, Escape resets.`)
    this.resize()
  }

  override connect_signals(): void {
    super.connect_signals()
    this.connect(this.model.tree_changed, () => {
      this.resize()
      this.request_paint()
    })
    this.connect(this.theme.changed, () => this.request_paint())
  }

  override remove(): void {
    this.tooltip?.remove()
    this.surface.el.remove()
    this.style_el.remove()
    super.remove()
  }

  /** As tall as the whole tree, of which zooming shows a part: nothing jumps about under a click. */
  private resize(): void {
    const levels = Math.min(MAX_LEVELS, Math.max(MIN_LEVELS, this.tree.levels))
    this.plot_model.height = levels * ROW_HEIGHT + 2
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

  private get first_level(): number {
    return this.tree.nodes[this.tree.focus]?.depth ?? 0
  }

  /** Horizontal place of a node in the zoomed view, 0 to 1; null where it is not in it. */
  private place({x0, x1, depth}: Node): [number, number] | null {
    const top = this.tree.nodes[this.tree.focus]
    const width = top.x1 - top.x0
    const middle = (x0 + x1) / 2
    if (width <= 0 || depth < top.depth || middle < top.x0 || middle > top.x1) {
      return null
    }
    return [Math.max(0, (x0 - top.x0) / width), Math.min(1, (x1 - top.x0) / width)]
  }

  protected _paint(ctx: Context2d): void {
    this.mount()
    paint_frame(ctx, this.plot_view, (width, height) => this.paint_tree(ctx, width, height))
  }

  private paint_tree(ctx: Context2d, width: number, height: number): void {
    ctx.font = FONT
    ctx.textBaseline = "middle"
    ctx.textAlign = "left"
    const {first_level, model: {marked}} = this
    for (const node of this.tree.nodes) {
      const y = (node.depth - first_level) * ROW_HEIGHT
      const place = this.place(node)
      if (place != null && y < height && (place[1] - place[0]) * width >= 0.3) {
        this.paint_node(ctx, node, place[0] * width, place[1] * width, y, marked.has(node.id))
      }
    }
  }

  private paint_node(ctx: Context2d, node: Node, x0: number, x1: number, y: number, is_marked: boolean): void {
    const {fill, ink} = this.paint_for(node)
    const room = x1 - x0 - (x1 - x0 > 3 ? 1 : 0)
    ctx.fillStyle = fill
    ctx.fillRect(x0, y, Math.max(room, 0.6), ROW_HEIGHT - 1)
    ctx.fillStyle = ink
    this.paint_label(ctx, node, x0 + 4, y + ROW_HEIGHT / 2, room)
    if (is_marked) {
      ctx.strokeStyle = css(this.theme.palette.foreground)
      ctx.lineWidth = 2
      ctx.strokeRect(x0 + 1, y + 1, Math.max(room - 2, 1), ROW_HEIGHT - 3)
    }
  }

  private node_at(x: number, y: number): number {
    const {width} = this.plot_view.frame.bbox
    const level = this.first_level + Math.floor(y / ROW_HEIGHT)
    const found = this.tree.nodes.find((node) => {
      const place = node.depth == level ? this.place(node) : null
      return place != null && place[1] > place[0] && x >= place[0] * width && x <= Math.max(place[1] * width, place[0] * width + 1)
    })
    return found?.id ?? -1
  }

  private hover(x: number, y: number, {clientX, clientY}: MouseEvent): void {
    const node = this.tree.nodes[this.node_at(x, y)]
    this.surface.cursor(node == null ? "default" : "pointer")
    if (node == null) {
      this.tooltip?.hide()
    } else {
      this.tooltip?.show(node.name, this.facts(node), clientX, clientY)
    }
  }

  private key(event: KeyboardEvent): boolean {
    const {model, tree} = this
    const at = model.cursor
    const siblings = tree.children_of(tree.nodes[at]?.parent ?? -1)
    const place = siblings.indexOf(at)
    switch (event.key) {
      case "ArrowDown": return model.walk(tree.children_of(at)[0])
      case "ArrowUp": return model.walk(tree.nodes[at]?.parent)
      case "ArrowLeft": return model.walk(siblings[place - 1])
      case "ArrowRight": return model.walk(siblings[place + 1])
      case "Enter": model.zoom(at); return true
      case "Backspace": model.zoom(Math.max(0, tree.nodes[tree.focus]?.parent ?? 0)); return true
      case "Home": model.zoom(0); return true
      case "Escape": model.store.reset(); return true
      default: return false
    }
  }
}
