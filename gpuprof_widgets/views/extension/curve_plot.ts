import type * as p from "@bokehjs/core/properties"
import type {Context2d} from "@bokehjs/core/util/canvas"
import {Renderer} from "@bokehjs/models/renderers/renderer"

import {AnalysisTabs} from "./analysis_tabs"
import {css} from "./colour"
import {element, type Fact} from "./element"
import {at_time, cell_text, drawn_steps, type PanelCurve} from "./engine"
import {paint_frame} from "./paint"
import type {Point} from "./surface"
import {TimePlotView} from "./time_plot"
import {TraceStore} from "./trace_store"

const AXIS_HEIGHT = 26
/** Pixels of a curve: many of them share less room. */
const TALL = 64
const SHORT = 40
const MANY = 4
const GAP = 6

/** The curves of the shown analysis under each other, on the time axis of the timeline. */
export class CurvePlotView extends TimePlotView {
  declare model: CurvePlot

  protected readonly description = "Curves. Arrow keys move, plus and minus zoom; the selected range is that of the timeline."
  protected override readonly css = CURVES_CSS
  protected readonly labels = element("div", {class: "lanes", "aria-hidden": "true"})

  get store(): TraceStore {
    return this.model.store
  }

  get curves(): PanelCurve[] {
    return this.model.tabs.shown?.curves ?? []
  }

  override async lazy_initialize(): Promise<void> {
    await super.lazy_initialize()
    this.arrange()
  }

  override connect_signals(): void {
    super.connect_signals()
    this.connect(this.model.tabs.properties.active.change, () => this.arrange())
  }

  /** The figure is there only where the shown analysis has curves. */
  private arrange(): void {
    const {length} = this.curves
    this.plot_model.height = AXIS_HEIGHT + Math.max(length, 1) * this.lane_height
    this.plot_model.visible = length > 0
    this.request_paint()
  }

  private get lane_height(): number {
    return this.curves.length > MANY ? SHORT : TALL
  }

  protected override mount(): void {
    super.mount()
    this.labels.replaceChildren(...this.curves.map((curve, i) => element("div", {style: `top:${i * this.lane_height + 2}px`},
      element("div", {title: curve.name}, curve.name), element("div", {class: "scale"}, this.scale_text(curve)))))
  }

  private scale_text(curve: PanelCurve): string {
    const [low, high] = extremes(curve)
    const most = cell_text(high, curve.unit)
    return low < 0 ? `${cell_text(low, curve.unit)} to ${most}` : `0 to ${most}`
  }

  protected _paint(ctx: Context2d): void {
    this.mount()
    paint_frame(ctx, this.plot_view, () => {
      this.curves.forEach((curve, i) => this.paint_curve(ctx, curve, i * this.lane_height))
    })
  }

  private paint_curve(ctx: Context2d, curve: PanelCurve, top: number): void {
    const {start, end, width} = this.view
    const {palette} = this.store.theme
    const [low, high] = extremes(curve)
    const room = this.lane_height - GAP
    const y = (value: number): number => top + GAP / 2 + room - (value - low) / (high - low) * room
    ctx.fillStyle = css(palette.line)
    ctx.fillRect(0, Math.round(y(0)), width, 1)
    const {least, most} = drawn_steps(curve, start, end, Math.max(1, Math.floor(width)))
    ctx.fillStyle = css(palette.accent)
    ctx.globalAlpha = 0.25
    most.forEach((value, x) => {
      if (!Number.isNaN(value)) {
        const [from, to] = [y(Math.max(value, 0)), y(Math.min(least[x], 0))]
        ctx.fillRect(x, from, 1, to - from)
      }
    })
    ctx.globalAlpha = 1
    most.forEach((value, x) => {
      if (!Number.isNaN(value)) {
        // Where a pixel's values do not meet those of the one before, an edge joins them.
        const highest = value < least[x - 1] ? least[x - 1] : value
        const lowest = least[x] > most[x - 1] ? most[x - 1] : least[x]
        ctx.fillRect(x, y(highest) - 0.75, 1, y(lowest) - y(highest) + 1.5)
      }
    })
  }

  protected hover({x, event}: Point): void {
    const time = this.time_at(x)
    this.surface.cursor(this.dragging.edge_at(x) != null ? "ew-resize" : "crosshair")
    const facts = this.curves.map((curve): Fact => [curve.name, cell_text(at_time(curve, time), curve.unit)])
    this.tooltip?.show(`at ${this.store.moment(time)}`, facts, event.clientX, event.clientY)
  }
}

/** Returns the ends of a curve's axis: it spans zero and all values. */
function extremes({value}: PanelCurve): [number, number] {
  const low = value.reduce((least, each) => Math.min(least, each), 0)
  const high = value.reduce((most, each) => Math.max(most, each), 0)
  return [low, high > low ? high : low + 1]
}

type CurvePlotProps = {
  store: p.Property<TraceStore>
  tabs: p.Property<AnalysisTabs>
}

export interface CurvePlot extends p.AttrsOf<CurvePlotProps> {}

export class CurvePlot extends Renderer {
  static override __module__ = "gpuprof_widgets"

  static {
    this.prototype.default_view = CurvePlotView
    this.define<CurvePlotProps>(({Ref}) => ({
      store: [Ref(TraceStore)],
      tabs: [Ref(AnalysisTabs)],
    }))
  }
}

const CURVES_CSS = `
.lanes { position: absolute; left: 0; overflow: hidden; pointer-events: none; font: 11px/14px var(--jp-ui-font-family, system-ui, sans-serif); color: var(--gp-foreground, #212121); }
.lanes > div { position: absolute; left: 2px; right: 8px; }
.lanes > div > div { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.lanes .scale { color: var(--gp-muted, #595959); font-variant-numeric: tabular-nums; }
`
