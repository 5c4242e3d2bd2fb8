import type * as p from "@bokehjs/core/properties"
import type {Context2d} from "@bokehjs/core/util/canvas"
import {Renderer} from "@bokehjs/models/renderers/renderer"

import {chain_text, facts_of} from "./details"
import type {Uncovered} from "./element"
import {hit, type Store} from "./engine"
import {event_key, zoom_to_event} from "./event_keys"
import {Gutter, GUTTER_CSS} from "./gutter"
import {UNDO_KEYS} from "./journal"
import {paint_frame} from "./paint"
import {bring_into_view} from "./scroll_port"
import {lit_rows, select_event} from "./selection"
import {WheelLatch, type Point} from "./surface"
import {TimePlotView} from "./time_plot"
import {TimelinePainter, type Box, type View} from "./timeline_paint"
import {TraceStore} from "./trace_store"
import {TrackArea} from "./track_area"
import {ROW_HEIGHT} from "./tracks"
import {reveal} from "./zoom"

const HIT_TOLERANCE = 3

/** The tracks over time, drawn on an ordinary Bokeh figure. */
export class TimelineView extends TimePlotView {
  declare model: Timeline

  protected readonly description = `Timeline. Arrow keys move, plus and minus zoom, Enter selects an event. ${UNDO_KEYS}`

  tracks: TrackArea
  /** What is to bring the selected events into view as soon as the tracks have their height: the tracks, or the page as well. */
  private called_up: "tracks" | "page" | null = null
  private painter: TimelinePainter
  private readonly latch = new WheelLatch()
  protected override readonly css = GUTTER_CSS
  private readonly gutter = new Gutter({
    fold: (track) => this.fold(track),
    scroll_into_view: ({top}) => this.tracks.scroll_into_view(top, ROW_HEIGHT),
    scroll_to: (top) => this.tracks.scroll_to(top),
  })
  protected readonly labels = this.gutter.box

  get store(): TraceStore {
    return this.model.store
  }

  get data(): Store {
    return this.store.data
  }

  override async lazy_initialize(): Promise<void> {
    await super.lazy_initialize()
    this.store.keyed_views.add("timeline")
    this.tracks = new TrackArea(this.data, this.model, () => this.plot_view.frame.bbox.height, () => this.request_paint())
    this.painter = new TimelinePainter(this.data)
    this.painter.recolour(this.store.theme.palette.background)
    if (this.store.focus != null) {
      this.unfold_lit()
      this.called_up = "tracks"
    }
    this.store.event_box = (row) => this.box_of(row)
    this.arrange()
  }

  override connect_signals(): void {
    super.connect_signals()
    const {store} = this
    this.connect(store.properties.show_path.change, () => this.request_paint())
    this.connect(store.selection_changed, () => this.follow_selection())
    this.connect(store.was_reset, () => this.tracks.scroll_to(0))
    this.connect(store.called_up, () => this.call_up())
    this.connect(store.theme.changed, () => this.painter.recolour(store.theme.palette.background))
  }

  override remove(): void {
    this.latch.remove()
    this.gutter.bar.remove()
    super.remove()
  }

  private arrange(): void {
    const {compact, max_height, axis_height} = this.model
    this.tracks.lay_out()
    const {layout} = this.tracks
    const least = (compact ? 1 : 4) * ROW_HEIGHT
    this.plot_model.height = Math.min(max_height, Math.max(layout.height, least)) + axis_height
    this.gutter.fill(layout)
  }

  private fold(track: number): void {
    this.tracks.fold(track)
    this.arrange()
    this.tracks.scroll_to(this.tracks.scroll)
  }

  override get view(): View {
    const {width, height} = this.plot_view.frame.bbox
    const {start, end} = this.store.visible
    return {start, end, width, height, scroll: this.tracks.scroll}
  }

  protected override mount(): void {
    super.mount()
    if (!this.gutter.bar.isConnected) {
      this.labels.after(this.gutter.bar)
    }
    this.gutter.place(this.plot_view.frame.bbox, this.plot_view.bbox.width, this.tracks.scroll)
  }

  protected _paint(ctx: Context2d): void {
    this.mount()
    this.tracks.stay_within()
    if (this.called_up != null && Math.abs(this.plot_view.bbox.height - this.plot_model.height!) < 1) {
      this.come_into_view(this.called_up)
      this.called_up = null
    }
    paint_frame(ctx, this.plot_view, () => this.paint_tracks(ctx))
  }

  private paint_tracks(ctx: Context2d): void {
    const {painter, view, tracks: {layout}, store} = this
    const {selection, show_path, theme: {palette}} = store
    painter.tracks(ctx, layout, view, {selection, show_path, palette})
    if (selection != null && selection.row >= 0) {
      painter.links(ctx, layout, selection.row, view, palette)
    }
  }

  box_of(row: number): Box {
    return this.painter.box(this.tracks.layout, row, this.view)
  }

  private event_at(x: number, y: number): number {
    const place = this.tracks.place_at(y)
    if (place == null) {
      return -1
    }
    const {start, end, width} = this.view
    const tolerance = this.data.tick((end - start) / width * HIT_TOLERANCE)
    return hit(this.data, place.lane.track, place.depth, this.data.tick(this.time_at(x)), tolerance)
  }

  protected override click({x, y}: Point): void {
    select_event(this.store, this.event_at(x, y))
  }

  protected override double_click({x, y}: Point): void {
    const row = this.event_at(x, y)
    if (row >= 0) {
      zoom_to_event(this.store, row)
    }
  }

  protected hover({x, y, event}: Point): void {
    const row = this.event_at(x, y)
    const edge = this.dragging.edge_at(x)
    this.surface.cursor(edge != null ? "ew-resize" : row >= 0 ? "pointer" : "crosshair")
    if (row < 0) {
      this.tooltip?.hide()
      return
    }
    const facts = facts_of(this.store, row)
    const chain = chain_text(this.data, row)
    this.tooltip?.show(
      this.data.name(row), chain == "" ? facts : [...facts, ["Chain", chain]], event.clientX, event.clientY, this.uncovered(row))
  }

  /** The heights of an event's bar; below the timeline are the details. */
  private uncovered(row: number): Uncovered {
    const {top, bottom} = this.surface.el.getBoundingClientRect()
    const [, y, , height] = this.box_of(row)
    return {top: top + Math.max(0, y), bottom: Math.min(top + y + height, bottom), floor: bottom}
  }

  protected override wheel(event: WheelEvent, x: number): boolean {
    return super.wheel(event, x)
      || this.latch.scrolls(event, this.tracks.scroll, this.tracks.scroll_end) && this.scroll_by(event.deltaY)
  }

  private scroll_by(pixels: number): boolean {
    this.tracks.scroll_to(this.tracks.scroll + pixels)
    return true
  }

  /** Unfolds the tracks of the selected events; all comes into view once the tracks have their new height. */
  private call_up(): void {
    if (this.unfold_lit()) {
      this.arrange()
    }
    this.called_up = "page"
    this.request_paint()
  }

  /** Unfolds the tracks of the selected events; returns whether any was folded. */
  private unfold_lit(): boolean {
    return this.tracks.unfold(new Set(lit_rows(this.store).map((row) => this.data.track[row])))
  }

  /** Scrolls the tracks until most of the selected events are in the middle, and the page until they are on screen. */
  private come_into_view(called_up: "tracks" | "page"): void {
    const stretch = this.tracks.centre(lit_rows(this.store))
    if (called_up == "page") {
      bring_into_view(this.surface.el, stretch, this.around)
    }
  }

  /** The tracks with what stands above and below them; pixels from the top of the tracks. */
  private get around(): {top: number, bottom: number} {
    const {el} = this.plot_view
    const {top} = this.surface.el.getBoundingClientRect()
    return {
      top: (el.previousElementSibling ?? el).getBoundingClientRect().top - top,
      bottom: (el.nextElementSibling ?? el).getBoundingClientRect().bottom - top,
    }
  }

  /** Shows where the selected event is; a selection made here is in view already. */
  private follow_selection(): void {
    const {selection} = this.store
    const row = selection?.row ?? -1
    if (row >= 0) {
      const {data} = this
      reveal(this.store, data.ns(data.ts[row]), data.ns(data.end[row]))
      if (selection!.source == "timeline") {
        this.tracks.scroll_to_event(row)
      } else {
        this.bring_into_view(row)
      }
    }
    this.request_paint()
  }

  /** Unfolds the track of an event and scrolls to its level. */
  bring_into_view(row: number): void {
    const track = this.data.track[row]
    if (this.tracks.layout.by_track.get(track)!.folded) {
      this.fold(track)
    }
    this.tracks.scroll_to_event(row)
  }

  protected override key(event: KeyboardEvent): boolean {
    if (event_key(this.store, event)) {
      return true
    }
    switch (event.key) {
      case "ArrowUp": return this.scroll_by(-2 * ROW_HEIGHT)
      case "ArrowDown": return this.scroll_by(2 * ROW_HEIGHT)
      case "PageUp": return this.scroll_by(-this.view.height)
      case "PageDown": return this.scroll_by(this.view.height)
      case "Enter": this.select_middle(); return true
      default: return super.key(event)
    }
  }

  /** The first event in the middle of the view, from the top of the visible tracks. */
  private select_middle(): void {
    const {width, height} = this.view
    for (let y = 1; y < height; y += 4) {
      const row = this.event_at(width / 2, y)
      if (row >= 0) {
        select_event(this.store, row)
        return
      }
    }
  }
}

type TimelineProps = {
  store: p.Property<TraceStore>
  axis_height: p.Property<number>
  max_height: p.Property<number>
  compact: p.Property<boolean>
  folds_to_fit: p.Property<boolean>
}

export interface Timeline extends p.AttrsOf<TimelineProps> {}

/** The tracks of a trace over time. */
export class Timeline extends Renderer {
  static override __module__ = "gpuprof_widgets"

  static {
    this.prototype.default_view = TimelineView
    this.define<TimelineProps>(({Bool, Float, Ref}) => ({
      store: [Ref(TraceStore)],
      axis_height: [Float, 24],
      max_height: [Float, 500],
      compact: [Bool, false],
      folds_to_fit: [Bool, false],
    }))
  }
}
