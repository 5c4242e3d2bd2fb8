import type * as p from "@bokehjs/core/properties"
import type {Context2d} from "@bokehjs/core/util/canvas"
import {Renderer} from "@bokehjs/models/renderers/renderer"

import {kind_of} from "./categories"
import {css, outline_of} from "./colour"
import {element} from "./element"
import type {ActivityKind} from "./engine"
import {UNDO_KEYS} from "./journal"
import {paint_frame} from "./paint"
import {RangeBand} from "./range_band"
import type {Selection} from "./report_state"
import {Surface, SurfaceView} from "./surface"
import {TraceStore} from "./trace_store"
import {pan_to, view_key, view_wheel, zoom_to} from "./zoom"

type Band = {kind: ActivityKind, shares: Float32Array}

const MARK_HEIGHT = 6
/** Kernels have no colour of their own: on the timeline it is that of their family. */
const CATEGORY_OF_KIND: Record<string, string> = {cpu: "cpu_op", copy: "gpu_memcpy", python: "python_function"}
const STRIP_NAMES: Record<string, string> = {cpu: "CPU", gpu: "GPU", copy: "copies", python: "Python"}
const KINDS: readonly ActivityKind[] = ["cpu", "gpu", "copy", "python"]

/** The whole trace in one strip: how busy CPU, kernels and copies are, or how deep Python's calls, and which part is in view. */
export class MinimapView extends SurfaceView {
  declare model: Minimap

  protected override readonly css = STRIPS_CSS

  private bands: Band[] = []
  /** the width for which the strips were measured last, or are */
  private measured = 0
  /** The time at which the drag that goes on has begun, ns. */
  private drag_start = 0
  private range_band: RangeBand | null = null
  private readonly strip_names = element("div", {class: "strips", "aria-hidden": "true"})

  get store(): TraceStore {
    return this.model.store
  }

  override async lazy_initialize(): Promise<void> {
    await super.lazy_initialize()
    await Promise.all(this.stores.map(({ready}) => ready))
    this.surface = new Surface({
      hover: () => this.surface.cursor("crosshair"),
      leave: () => undefined,
      click: ({x}) => this.centre(x),
      double_click: () => zoom_to(this.store, ...this.store.bounds, 0),
      drag_start: ({x}) => { this.drag_start = this.time_at(x) },
      drag: ({x}) => this.show_from_start(this.time_at(x)),
      wheel: (event, x) => this.wheel(event, x),
      key: ({key}) => view_key(this.store, key),
    }, `Overview of the whole trace. Arrow keys move the visible part, plus and minus resize it. ${UNDO_KEYS}`)
  }

  override connect_signals(): void {
    super.connect_signals()
    const {store} = this
    const repaint = (): void => this.request_paint()
    this.connect(store.visible.change, repaint)
    for (const signal of [store.properties.window.change, store.draft_changed]) {
      this.connect(signal, () => this.place_range())
    }
    this.connect(store.theme.changed, repaint)
    for (const each of this.stores) {
      this.connect(each.selection_changed, repaint)
    }
  }

  /** The traces, each with a strip of its own. */
  private get stores(): TraceStore[] {
    return this.store.linked.stores
  }

  private get width(): number {
    return this.plot_view.frame.bbox.width
  }

  private x_of(ns: number): number {
    const [low, high] = this.store.bounds
    return (ns - low) / (high - low) * this.width
  }

  private time_at(x: number): number {
    const [low, high] = this.store.bounds
    return low + x / this.width * (high - low)
  }

  /** Has the strips measured anew, and painted then. */
  private async measure(pixels: number): Promise<void> {
    this.measured = pixels
    try {
      const bands = await this.bands_of(pixels)
      if (this.measured == pixels) {
        this.bands = bands
        this.name_strips()
        this.request_paint()
      }
    } catch {
      this.measured = 0 // asked again when it is painted next
    }
  }

  /** One strip per kind of track; of several traces one strip each, of the GPU where it has one. Python counts where nothing else ran. */
  private async bands_of(pixels: number): Promise<Band[]> {
    const bands = await Promise.all(this.stores.map((store) => this.bands_of_trace(store, pixels)))
    if (this.stores.length > 1) {
      return bands.flatMap((of_trace) => ["gpu", "cpu", "python"].flatMap((kind) => of_trace.find((band) => band.kind == kind) ?? []).slice(0, 1))
    }
    const is_work = ({kind}: Band): boolean => kind != "python"
    const [work, python] = [bands[0].filter(is_work), bands[0].filter((band) => !is_work(band))]
    return work.some(({shares}) => shares.some((share) => share > 0)) ? work : python
  }

  private async bands_of_trace(store: TraceStore, pixels: number): Promise<Band[]> {
    const [start, end] = store.bounds.map((ns) => store.data.tick(ns))
    const shares = await store.answers.ask("activity", {kinds: [...KINDS], window: {start, end}, pixels}, this)
    return KINDS.flatMap((kind, i) => shares[i] == null ? [] : {kind, shares: shares[i]})
  }

  override remove(): void {
    this.range_band?.el.remove()
    this.strip_names.remove()
    super.remove()
  }

  private place_range(): void {
    const [start, end] = this.store.bounds
    this.range_band?.place(this.plot_view.frame.bbox, {start, end})
  }

  protected _paint(ctx: Context2d): void {
    this.range_band ??= new RangeBand(this.store)
    this.mount(this.range_band.el, this.strip_names)
    this.place_range()
    const pixels = Math.max(1, Math.floor(this.width))
    if (this.measured != pixels) {
      void this.measure(pixels)
    }
    paint_frame(ctx, this.plot_view, (width, height) => {
      this.paint_bands(ctx, height)
      this.paint_view(ctx, width, height)
      const room = height / this.stores.length
      this.stores.forEach((store, i) => this.paint_marks(ctx, store, i * room, Math.min(MARK_HEIGHT, room / 2)))
    })
  }

  /** Puts the name of each strip before it; on a page of several traces the timelines below have names. */
  private name_strips(): void {
    const {left, top, height} = this.plot_view.frame.bbox
    this.strip_names.style.cssText = `width:${left}px;top:${top}px;height:${height}px`
    const names = this.stores.length == 1 ? this.bands.map(({kind}) => STRIP_NAMES[kind]) : []
    this.strip_names.replaceChildren(...names.map((name) => element("span", {}, name)))
  }

  /** Marks along the upper edge where events and ranges are selected, also those that are not in view. */
  private paint_marks(ctx: Context2d, store: TraceStore, top: number, height: number): void {
    const {selection, theme: {palette}} = store
    if (selection != null) {
      ctx.fillStyle = css(palette.background)
      ctx.fillRect(0, top, this.width, height)
      ctx.fillStyle = css(palette.accent)
      this.lit_pixels(store, selection).forEach((count, x) => {
        if (count > 0) {
          ctx.fillRect(x, top, 2, height)
        }
      })
    }
  }

  /** Number of selected events and ranges in each pixel. */
  private lit_pixels({data}: TraceStore, {rows, ranges = []}: Selection): Int32Array {
    const pixels = Math.ceil(this.width)
    const changes = new Int32Array(pixels + 1)
    const pixel_of = (ns: number): number => Math.max(0, Math.min(Math.floor(this.x_of(ns)), pixels - 1))
    const add = (start: number, end: number): void => {
      changes[pixel_of(start)] += 1
      changes[pixel_of(end) + 1] -= 1
    }
    for (const row of rows) {
      add(data.ns(data.ts[row]), data.ns(data.end[row]))
    }
    for (const [start, end] of ranges) {
      add(start, end)
    }
    let count = 0
    return changes.map((change) => { count += change; return count }).subarray(0, pixels)
  }

  private paint_bands(ctx: Context2d, height: number): void {
    const {palette} = this.store.theme
    ctx.fillStyle = css(palette.band)
    ctx.fillRect(0, 0, this.width, height)
    const room = height / Math.max(1, this.bands.length)
    this.bands.forEach(({kind, shares}, i) => {
      const colour = kind == "gpu" ? palette.muted : kind_of(CATEGORY_OF_KIND[kind]).colour
      const tall = Array.from(shares, (share) => share == 0 ? 0 : Math.max(1, share * (room - 2)))
      const bottom = (i + 1) * room - 1
      ctx.fillStyle = css(colour)
      tall.forEach((height, x) => ctx.fillRect(x, bottom - height, 1, height))
      ctx.fillStyle = css(outline_of(colour, palette.band) ?? colour)
      tall.forEach((height, x) => ctx.fillRect(x, bottom - height, 1, Math.min(height, 1)))
    })
  }

  private paint_view(ctx: Context2d, width: number, height: number): void {
    const {palette} = this.store.theme
    const x0 = this.x_of(this.store.visible.start)
    const x1 = this.x_of(this.store.visible.end)
    ctx.fillStyle = css(palette.background)
    ctx.globalAlpha = 0.65
    ctx.fillRect(0, 0, x0, height)
    ctx.fillRect(x1, 0, width - x1, height)
    ctx.globalAlpha = 1
    ctx.strokeStyle = css(palette.foreground)
    ctx.lineWidth = 1.5
    ctx.strokeRect(Math.max(x0, 0.75), 0.75, Math.max(Math.min(x1, width - 0.75) - Math.max(x0, 0.75), 2), height - 1.5)
  }

  private centre(x: number): void {
    const {start, end} = this.store.visible
    pan_to(this.store, this.time_at(x) - (end - start) / 2)
  }

  /** Shows what lies between the start of the drag and another time (ns). */
  private show_from_start(time: number): void {
    zoom_to(this.store, Math.min(time, this.drag_start), Math.max(time, this.drag_start), 0)
  }

  /** As on the timeline: with Ctrl the visible part gets shorter or longer, with Shift it moves. */
  private wheel(event: WheelEvent, x: number): boolean {
    const {start, end} = this.store.visible
    return view_wheel(this.store, event, Math.max(0, Math.min((this.time_at(x) - start) / (end - start), 1)), this.width)
  }
}

type MinimapProps = {store: p.Property<TraceStore>}

export interface Minimap extends p.AttrsOf<MinimapProps> {}

export class Minimap extends Renderer {
  static override __module__ = "gpuprof_widgets"

  static {
    this.prototype.default_view = MinimapView
    this.define<MinimapProps>(({Ref}) => ({store: [Ref(TraceStore)]}))
  }
}

const STRIPS_CSS = `
.strips {
  position: absolute; left: 0; box-sizing: border-box; padding-right: 8px; display: grid; grid-auto-rows: 1fr; align-items: center; justify-items: end;
  overflow: hidden; pointer-events: none; font: 10px/13px var(--jp-ui-font-family, system-ui, sans-serif); color: var(--gp-foreground, #212121);
}
`
