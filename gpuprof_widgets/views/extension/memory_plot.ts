import type * as p from "@bokehjs/core/properties"
import type {Context2d} from "@bokehjs/core/util/canvas"
import {Renderer} from "@bokehjs/models/renderers/renderer"

import {element, type Fact} from "./element"
import {format_bytes, format_ns, format_share, Memory, type MemoryBlock, type MemoryDevice} from "./engine"
import {byte_ticks, paint_block, paint_grid, paint_peak, paint_reserved, paint_stacks, y_of, type MemoryScale} from "./memory_paint"
import {paint_frame} from "./paint"
import type {Point} from "./surface"
import {TimePlotView} from "./time_plot"
import {TraceStore} from "./trace_store"
import {reveal, zoom_to} from "./zoom"

const HEADROOM = 1.12

/** Memory of one device over time, stacked by category, on the time axis of the timeline. */
export class MemoryPlotView extends TimePlotView {
  declare model: MemoryPlot

  memory: Memory
  protected readonly description = "Memory. Arrow keys left and right move, plus and minus zoom, up and down step through the biggest blocks, P goes to the peak."
  protected override readonly css = MEMORY_PLOT_CSS
  protected readonly labels = element("div", {class: "bytes", "aria-hidden": "true"})

  get store(): TraceStore {
    return this.model.store
  }

  get device(): MemoryDevice {
    return this.memory.devices[this.model.device]
  }

  override async lazy_initialize(): Promise<void> {
    await super.lazy_initialize()
    this.memory = memory_of(this.store)
    this.store.keyed_views.add("memory")
  }

  override connect_signals(): void {
    super.connect_signals()
    const {store, model} = this
    const repaint = (): void => this.request_paint()
    this.connect(store.selection_changed, repaint)
    this.connect(model.properties.device.change, repaint)
    this.connect(model.properties.from_zero.change, repaint)
  }

  private moments(): Int32Array {
    const {start, end, width} = this.view
    return this.device.pixels(start, end, Math.max(1, Math.floor(width)))
  }

  /** Bytes from 0, or where that is wanted from the least to the most that is in view. */
  private scale(moments: Int32Array): MemoryScale {
    const {device} = this
    const {height} = this.plot_view.frame.bbox
    if (this.model.from_zero) {
      return {...this.view, low: 0, high: Math.max(device.most * HEADROOM, 1), height}
    }
    const totals = Array.from(moments, (moment) => moment < 0 ? 0 : device.totals[moment])
    const low = Math.min(...totals)
    const span = Math.max(Math.max(...totals) - low, 1)
    return {...this.view, low: Math.max(0, low - span / 10), high: low + span * 1.2, height}
  }

  protected _paint(ctx: Context2d): void {
    this.mount()
    const moments = this.moments()
    const scale = this.scale(moments)
    this.label(scale)
    paint_frame(ctx, this.plot_view, () => {
      const {store, memory, model} = this
      const {palette} = store.theme
      paint_grid(ctx, scale, palette)
      paint_stacks(ctx, memory, model.device, moments, scale, palette)
      paint_reserved(ctx, memory, model.device, scale, palette)
      const block = selected_block(store)
      if (block != null && block.device == model.device) {
        paint_block(ctx, block, scale, palette)
      }
      const peak = this.peak
      if (peak >= 0) {
        paint_peak(ctx, this.device.moments[peak], this.device.totals[peak], scale, palette)
      }
    })
  }

  /** The fullest moment of all, -1 where the device held nothing. */
  get peak(): number {
    return this.device.fullest(...this.store.bounds)
  }

  private label(scale: MemoryScale): void {
    const ticks = byte_ticks(scale.low, scale.high).filter((tick) => y_of(tick, scale) > 6)
    this.labels.replaceChildren(...ticks.map((tick) =>
      element("div", {style: `top:${Math.min(y_of(tick, scale), scale.height - 6)}px`}, format_bytes(tick))))
  }

  private hit(x: number, y: number): {category: number, block: MemoryBlock | null} | null {
    const scale = this.scale(this.moments())
    const bytes = scale.low + (scale.height - y) / scale.height * (scale.high - scale.low)
    const moment = this.shown_at(x)
    return moment < 0 ? null : this.memory.hit(this.model.device, this.device.moments[moment], bytes)
  }

  /** The moment that a pixel shows. */
  private shown_at(x: number): number {
    const pixel = Math.floor(x)
    return this.device.fullest(this.time_at(pixel), this.time_at(pixel + 1))
  }

  protected override click({x, y}: Point): void {
    select_block(this.store, this.hit(x, y)?.block ?? null)
  }

  protected override double_click({x, y}: Point): void {
    this.zoom_on(this.hit(x, y)?.block ?? null)
  }

  protected hover({x, y, event}: Point): void {
    const moment = this.shown_at(x)
    const edge = this.dragging.edge_at(x)
    const pointed = this.hit(x, y)
    this.surface.cursor(edge != null ? "ew-resize" : pointed?.block != null ? "pointer" : "crosshair")
    if (moment < 0) {
      this.tooltip?.hide()
      return
    }
    const {device, memory} = this
    const total = device.totals[moment]
    const stack = [...device.stack(moment)].map((bytes, category): [number, number] => [category, bytes])
    const facts: Fact[] = stack.filter(([, bytes]) => bytes > 0).reverse()
      .map(([category, bytes]) => [memory.categories[category], `${format_bytes(bytes)} (${format_share(bytes / total)})`])
    const reserved = device.reserved_at(device.moments[moment])
    if (reserved != null) {
      facts.push(["reserved", format_bytes(reserved)])
    }
    if (pointed?.block != null) {
      facts.push(["Here", `${format_bytes(pointed.block.bytes)} of ${memory.categories[pointed.category]}`], ...block_facts(this.store, pointed.block))
    }
    const time = this.store.moment(Math.max(device.moments[moment], this.time_at(x)))
    this.tooltip?.show(`${device.name}: ${format_bytes(total)} at ${time}`, facts, event.clientX, event.clientY)
  }

  private zoom_on(block: MemoryBlock | null): void {
    if (block != null) {
      const [low, high] = this.store.bounds
      zoom_to(this.store, Math.max(block.start, low), Math.min(block.end, high), 0.2)
    }
  }

  /** The next smaller or bigger block that lives in the range; the biggest at first. */
  private step(direction: 1 | -1): void {
    const {store} = this
    const [start, end] = store.window ?? [store.visible.start, store.visible.end]
    const blocks = this.memory.living(this.model.device, start, end)
    const now = blocks.findIndex(({index}) => index == selected_block(store)?.index)
    const next = now < 0 ? 0 : Math.max(0, Math.min(now + direction, blocks.length - 1))
    select_block(store, blocks[next] ?? null)
  }

  protected override key(event: KeyboardEvent): boolean {
    switch (event.key) {
      case "ArrowUp": this.step(-1); return true
      case "ArrowDown": case "Enter": this.step(1); return true
      case "p": case "P": go_to_peak(this.store, this.model.device); return true
      case "f": this.zoom_on(selected_block(this.store)); return true
      default: return super.key(event)
    }
  }
}

type MemoryPlotProps = {
  store: p.Property<TraceStore>
  device: p.Property<number>
  from_zero: p.Property<boolean>
}

export interface MemoryPlot extends p.AttrsOf<MemoryPlotProps> {}

export class MemoryPlot extends Renderer {
  declare properties: Renderer.Props & MemoryPlotProps

  static override __module__ = "gpuprof_widgets"

  static {
    this.prototype.default_view = MemoryPlotView
    this.define<MemoryPlotProps>(({Bool, Int, Ref}) => ({
      store: [Ref(TraceStore)],
      device: [Int, 0],
      from_zero: [Bool, true],
    }))
  }
}

const MEMORY_PLOT_CSS = `
.bytes { position: absolute; left: 0; overflow: hidden; pointer-events: none; font: 11px/12px var(--jp-ui-font-family, system-ui, sans-serif); color: var(--gp-foreground, #212121); }
.bytes > div { position: absolute; right: 8px; transform: translateY(-50%); font-variant-numeric: tabular-nums; }
`

/** The record's memory, put together once for all views. */
export function memory_of({data}: TraceStore): Memory {
  return data.lazily("memory", () => new Memory(data.header.memory!))
}

/** Selects a block: the op that allocated it lights up on the timeline. Null selects nothing. */
export function select_block(store: TraceStore, block: MemoryBlock | null): void {
  if (block == null) {
    store.choose(null)
    return
  }
  const rows = [block.op, block.row, block.release].filter((row) => row >= 0)
  const category = memory_of(store).categories[block.category]
  store.choose({
    source: "memory",
    row: rows[0] ?? -1,
    rows: Int32Array.from(rows).sort(),
    key: `memory ${block.index}`,
    labels: new Set(rows.map((row) => store.data.label[row])),
    text: `${format_bytes(block.bytes)} of ${category}`,
  })
}

/** Returns the selected block; for an event selected in another view, the biggest block that it allocated or released. */
export function selected_block(store: TraceStore): MemoryBlock | null {
  const {selection} = store
  if (selection == null) {
    return null
  }
  const {blocks} = memory_of(store)
  if (selection.source == "memory") {
    return blocks.find(({index}) => selection.key == `memory ${index}`) ?? null
  }
  const {row} = selection
  const blocks_of_event = row < 0 ? [] : blocks.filter((block) => block.op == row || block.row == row || block.release == row)
  return blocks_of_event.reduce<MemoryBlock | null>((most, block) => most == null || block.bytes > most.bytes ? block : most, null)
}

/** Selects the biggest block that was alive when a device held most, and brings that moment into view. */
export function go_to_peak(store: TraceStore, device: number): void {
  const memory = memory_of(store)
  const {moments} = memory.devices[device]
  const peak = memory.devices[device].fullest(...store.bounds)
  if (peak >= 0) {
    select_block(store, memory.living(device, moments[peak], moments[peak])[0] ?? null)
    reveal(store, moments[peak], moments[peak])
  }
}

/** Returns the start of a block's life and its length, in words. */
export function lifetime(store: TraceStore, {start, end}: MemoryBlock): string {
  if (start == -Infinity) {
    return end == Infinity ? "throughout the record" : `from before the record until ${store.moment(end)}`
  }
  return end == Infinity ? `from ${store.moment(start)} to the end` : `from ${store.moment(start)} for ${format_ns(end - start)}`
}

/** Returns the facts about a block, for the tooltip. */
export function block_facts(store: TraceStore, block: MemoryBlock): Fact[] {
  const facts: Fact[] = [["Alive", lifetime(store, block)]]
  const causes: Fact[] = [
    ["Line", block.line_name], ["Module", block.module_name], ["Op", block.op_name], ["Tensor", block.tensor],
  ]
  return [...facts, ...causes.filter(([, value]) => value != "")]
}
