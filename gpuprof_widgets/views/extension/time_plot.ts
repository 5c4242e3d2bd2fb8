import {Axis} from "@bokehjs/models/axes/axis"
import {TickFormatter} from "@bokehjs/models/formatters/tick_formatter"
import type {Plot} from "@bokehjs/models/plots/plot"

import {css} from "./colour"
import {Tooltip} from "./element"
import {format_ticks} from "./engine"
import {RangeBand} from "./range_band"
import {Surface, SurfaceView, type Point} from "./surface"
import type {Palette} from "./theme"
import type {TraceStore} from "./trace_store"
import {pan_to, view_key, view_wheel} from "./zoom"

/** A plot over the time that the timeline shows: it is brushed, moved and zoomed like that. */
export abstract class TimePlotView extends SurfaceView {
  protected tooltip: Tooltip | null = null
  protected dragging: TimelineDrag
  private range_band: RangeBand | null = null

  abstract get store(): TraceStore
  /** The plot's name and its keys, for screen readers. */
  protected abstract readonly description: string
  /** The element on the left of the plot. */
  protected abstract readonly labels: HTMLElement
  protected abstract hover(point: Point): void

  protected click(_point: Point): void {}

  protected double_click(_point: Point): void {}

  protected leave(): void {
    this.tooltip?.hide()
  }

  override async lazy_initialize(): Promise<void> {
    await super.lazy_initialize()
    await this.store.ready
    this.dragging = new TimelineDrag(this.store, this)
    this.surface = new Surface({
      hover: (point) => this.hover(point),
      leave: () => this.leave(),
      click: (point) => this.click(point),
      double_click: (point) => this.double_click(point),
      drag_start: (point) => this.dragging.start(point),
      drag: (point) => this.dragging.move(point),
      drag_end: (point) => this.dragging.end(point),
      drag_cancel: () => this.dragging.cancel(),
      wheel: (event, x) => this.wheel(event, x),
      key: (event) => this.key(event),
    }, this.description)
  }

  override connect_signals(): void {
    super.connect_signals()
    const {store} = this
    for (const signal of [store.visible.change, store.properties.window.change, store.selection_changed]) {
      this.connect(signal, () => this.tooltip?.hide())
    }
    for (const signal of [store.properties.window.change, store.draft_changed]) {
      this.connect(signal, () => this.place_range())
    }
    this.connect(store.theme.changed, () => {
      recolour_axes(this.plot_model, store.theme.palette)
      this.request_paint()
    })
  }

  override remove(): void {
    this.tooltip?.remove()
    this.labels.remove()
    this.range_band?.el.remove()
    super.remove()
  }

  get view(): {start: number, end: number, width: number} {
    const {start, end} = this.store.visible
    return {start, end, width: this.plot_view.frame.bbox.width}
  }

  /** The time at a pixel of the surface, ns. */
  time_at(x: number): number {
    const {start, end, width} = this.view
    return start + x / width * (end - start)
  }

  protected override mount(): void {
    this.range_band ??= new RangeBand(this.store)
    super.mount(this.range_band.el, this.labels)
    this.place_range()
    this.tooltip ??= new Tooltip(this.root.el, this.root.shadow_el)
    const {left, top, height} = this.plot_view.frame.bbox
    this.labels.style.cssText = `top:${top}px;width:${left}px;height:${height}px`
  }

  private place_range(): void {
    this.range_band?.place(this.plot_view.frame.bbox, this.view)
  }

  protected wheel(event: WheelEvent, x: number): boolean {
    this.tooltip?.hide()
    const {width} = this.view
    return view_wheel(this.store, event, x / width, width)
  }

  protected key(event: KeyboardEvent): boolean {
    return view_key(this.store, event.key)
  }
}

/** Bokeh's axes in the page's colours. */
function recolour_axes(plot: Plot, palette: Palette): void {
  for (const axis of [...plot.above, ...plot.below]) {
    if (axis instanceof Axis) {
      axis.major_label_text_color = css(palette.muted)
      axis.axis_line_color = css(palette.line)
      axis.major_tick_line_color = css(palette.line)
    }
  }
}

type TimeScale = {time_at(x: number): number, view: {start: number, end: number, width: number}}

type Dragged = {kind: "brush", fixed: number} | {kind: "pan", x: number, start: number}

const EDGE = 5

/** A drag brushes a range, moves one of its edges, or moves the view. */
class TimelineDrag {
  private drag: Dragged | null = null

  constructor(private readonly store: TraceStore, private readonly scale: TimeScale) {}

  /** Index of the brushed range's edge under a pixel; null where there is none. */
  edge_at(x: number): 0 | 1 | null {
    const range = this.store.window
    if (range == null) {
      return null
    }
    const {start, end, width} = this.scale.view
    const near = ([0, 1] as const).find((i) => Math.abs((range[i] - start) / (end - start) * width - x) <= EDGE)
    return near ?? null
  }

  start({x, event}: Point): void {
    const edge = this.edge_at(x)
    if (event.shiftKey) {
      this.drag = {kind: "pan", x, start: this.store.visible.start}
    } else if (edge != null && this.store.window != null) {
      this.drag = {kind: "brush", fixed: this.store.window[1 - edge]}
    } else {
      this.drag = {kind: "brush", fixed: this.scale.time_at(x)}
    }
  }

  move({x}: Point): void {
    const {drag} = this
    if (drag?.kind == "brush") {
      this.store.drag([drag.fixed, this.scale.time_at(x)])
    } else if (drag?.kind == "pan") {
      const {start, end, width} = this.scale.view
      pan_to(this.store, drag.start - (x - drag.x) / width * (end - start))
    }
  }

  end({x}: Point): void {
    if (this.drag?.kind == "brush") {
      this.store.brush([this.drag.fixed, this.scale.time_at(x)])
    }
    this.drag = null
  }

  cancel(): void {
    this.drag = null
    this.store.drag(null)
  }
}

/** Ticks in ns. */
export class EngineeringTimeFormatter extends TickFormatter {
  static override __module__ = "gpuprof_widgets"

  doFormat(ticks: string[] | number[], _opts: {loc: number}): string[] {
    return format_ticks(ticks.map(Number))
  }
}
