import type {Context2d} from "@bokehjs/core/util/canvas"

import {chain_text, facts_of} from "./details"
import type {Uncovered} from "./element"
import {hit, type Store} from "./engine"
import {event_key, zoom_to_event} from "./event_keys"
import {Gutter, GUTTER_CSS, type TrackActions} from "./gutter"
import {UNDO_KEYS} from "./journal"
import {Measurement} from "./measurement"
import {paint_frame} from "./paint"
import {FLAGS_CSS, flags_height, RemarkFlags} from "./remarks"
import {RULER_CSS, RulerLine} from "./ruler_line"
import {bring_into_view} from "./scroll_port"
import {lit_rows, select_event} from "./selection"
import {WheelLatch, type Point} from "./surface"
import {TimePlotView, type Drag} from "./time_plot"
import type {Sought, Timeline} from "./timeline"
import {TimelinePainter, type Box, type View} from "./timeline_paint"
import type {TraceStore} from "./trace_store"
import {TrackArea} from "./track_area"
import {ROW_HEIGHT, y_of_lane} from "./tracks"
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
  protected override readonly css = GUTTER_CSS + RULER_CSS + FLAGS_CSS
  private remark_flags: RemarkFlags | null = null
  private ruler_line: RulerLine | null = null
  private readonly gutter = new Gutter(this.track_actions)
  private readonly measurement = new Measurement(this.store, this)
  protected readonly labels = this.gutter.box

  get store(): TraceStore {
    return this.model.store
  }

  get data(): Store {
    return this.store.data
  }

  override async lazy_initialize(): Promise<void> {
    await super.lazy_initialize()
    await this.model.prepare()
    this.store.surfaces.set("timeline", this.surface.el)
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
    this.connect(store.called_up, (takes_focus) => this.call_up(takes_focus))
    this.connect(store.ruler.changed, () => this.follow_ruler())
    this.connect(this.model.order_changed, () => this.arrange_again())
    this.connect(this.model.sought, (sought) => this.seek(sought))
    this.connect(store.theme.changed, () => this.painter.recolour(store.theme.palette.background))
  }

  override remove(): void {
    this.latch.remove()
    this.gutter.remove()
    this.ruler_line?.el.remove()
    this.remark_flags?.flags.remove()
    this.remark_flags?.lines.remove()
    super.remove()
  }

  private arrange(): void {
    const {compact, max_height, axis_height} = this.model
    this.tracks.lay_out()
    const {layout} = this.tracks
    const least = (compact ? 1 : 4) * ROW_HEIGHT
    this.plot_model.height = Math.min(max_height, Math.max(layout.height, least)) + axis_height + flags_height(this.store)
    this.gutter.fill(layout)
  }

  private get track_actions(): TrackActions {
    return {
      fold: (track) => this.fold(track),
      pin: (track) => this.pin(track),
      hide: (track) => this.model.reorder(this.model.order.hide(track)),
      move: (track, by) => this.model.reorder(this.model.order.move(track, by)),
      place: (track, at) => this.model.reorder(this.model.order.place(track, at)),
      scroll_into_view: (lane) => this.tracks.scroll_into_view(lane, lane.top, ROW_HEIGHT),
      scroll_to: (top) => this.tracks.scroll_to(top),
      find: () => this.find_track(),
    }
  }

  private fold(track: number): void {
    this.tracks.fold(track)
    this.arrange_again()
  }

  private arrange_again(): void {
    this.arrange()
    this.tracks.scroll_to(this.tracks.scroll)
  }

  /** Pins a track or takes the pin away. One that is too tall to stay on top is folded. */
  private pin(track: number): void {
    this.model.reorder(this.model.order.pin(track))
    const lane = this.tracks.lane_of(track)!
    if (lane.is_pinned && !lane.is_stuck && lane.foldable && !lane.folded) {
      this.fold(track)
    }
  }

  /** Scrolls to a track that was looked for and marks its name; null takes the mark away. */
  private seek(sought: Sought | null): void {
    const {tracks} = this
    const lane = tracks.lane_of(sought?.track ?? -1)
    this.gutter.mark(lane?.track ?? -1)
    if (lane != null && sought != null) {
      if (!lane.is_stuck) {
        tracks.scroll_to(lane.top - tracks.layout.stuck - ROW_HEIGHT)
      }
      if (sought.on_screen) {
        const top = y_of_lane(lane, tracks.scroll)
        bring_into_view(this.surface.el, {top, bottom: top + Math.min(lane.height, this.view.height)}, this.around)
      }
      if (sought.takes_focus) {
        this.gutter.focus(lane.track)
      }
    }
  }

  private find_track(): boolean {
    this.model.find_called.emit()
    return true
  }

  override get view(): View {
    const {width, height} = this.plot_view.frame.bbox
    const {start, end} = this.store.visible
    return {start, end, width, height, scroll: this.tracks.scroll}
  }

  override get drag_pans(): boolean {
    return this.model.drag_pans
  }

  protected override mount(): void {
    super.mount()
    this.place_ruler_line()
    this.place_flags()
    if (!this.gutter.bar.isConnected) {
      this.labels.after(this.gutter.bar)
    }
    this.gutter.mount(this.root.el, this.root.shadow_el)
    this.gutter.place(this.plot_view.frame.bbox, this.plot_view.bbox.width, this.tracks.scroll)
  }

  protected _paint(ctx: Context2d): void {
    this.mount()
    this.tracks.stay_within()
    if (this.called_up != null && Math.abs(this.plot_view.bbox.height - this.plot_model.height!) < 1) {
      const {called_up} = this
      this.called_up = null
      this.come_into_view(called_up)
    }
    paint_frame(ctx, this.plot_view, () => this.paint_tracks(ctx))
  }

  private paint_tracks(ctx: Context2d): void {
    const {painter, view, tracks: {layout}, store} = this
    painter.tracks(ctx, layout, view, store)
    this.measurement.paint(ctx)
    const {selection} = store
    if (selection != null && selection.row >= 0) {
      painter.links(ctx, layout, selection.row, view, store.theme.palette)
    }
  }

  box_of(row: number): Box | null {
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

  /** The line over the time axis; of several timelines the one with the axis has it. */
  private place_ruler_line(): void {
    if (this.model.axis_height > 0) {
      if (this.ruler_line == null) {
        this.ruler_line = new RulerLine(this.store.ruler)
        this.surface.el.after(this.ruler_line.el)
        this.ruler_line.update()
      }
      this.ruler_line.el.style.height = `${this.plot_view.frame.bbox.top}px`
    }
  }

  private place_flags(): void {
    if (this.store.remark_lines.length > 0) {
      if (this.remark_flags == null) {
        this.remark_flags = new RemarkFlags(this.store)
        this.surface.el.after(this.remark_flags.lines, this.remark_flags.flags)
      }
      this.remark_flags.place(this.plot_view.frame.bbox, this.view)
    }
  }

  private follow_ruler(): void {
    this.ruler_line?.update()
    this.request_paint()
  }

  protected override drag_from(start: Point): Drag {
    return this.store.ruler.is_on && !start.event.shiftKey ? this.measurement : super.drag_from(start)
  }

  protected override leave(): void {
    super.leave()
    if (this.store.ruler.is_on) {
      this.store.ruler.hover(null)
    }
  }

  protected override click(point: Point): void {
    if (this.store.ruler.is_on) {
      this.measurement.end(point)
    } else {
      select_event(this.store, this.event_at(point.x, point.y))
    }
  }

  protected override double_click({x, y}: Point): void {
    const row = this.event_at(x, y)
    if (row >= 0) {
      zoom_to_event(this.store, row)
    }
  }

  protected hover(point: Point): void {
    const {x, y, event} = point
    if (this.store.ruler.is_on) {
      this.surface.cursor("crosshair")
      this.tooltip?.hide()
      this.measurement.move(point)
      return
    }
    const row = this.event_at(x, y)
    const edge = this.dragging.edge_at(x)
    this.surface.cursor(edge != null ? "ew-resize" : this.model.drag_pans ? "grab" : row >= 0 ? "pointer" : "crosshair")
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
    const [, y, , height] = this.box_of(row)!
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

  /** Unfolds the tracks of the selected events and shows hidden ones; all comes into view once the tracks have their new height. */
  private call_up(takes_focus: boolean): void {
    if (this.unfold_lit()) {
      this.arrange()
    }
    this.called_up = "page"
    if (takes_focus) {
      this.surface.el.focus({preventScroll: true})
    }
    this.request_paint()
  }

  /** Shows and unfolds the tracks of the selected events; returns whether any was folded. */
  private unfold_lit(): boolean {
    const tracks = new Set(lit_rows(this.store).map((row) => this.data.track[row]))
    const was_folded = this.tracks.unfold(tracks)
    this.model.reorder(this.model.order.show(tracks))
    return was_folded
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

  /** Shows and unfolds the track of an event and scrolls to its level. */
  bring_into_view(row: number): void {
    const track = this.data.track[row]
    this.model.reorder(this.model.order.show([track]))
    if (this.tracks.lane_of(track)?.folded === true) {
      this.fold(track)
    }
    this.tracks.scroll_to_event(row)
  }

  protected override key(event: KeyboardEvent): boolean {
    if (event_key(this.store, event)) {
      return true
    }
    const row = this.store.selection?.row ?? -1
    switch (event.key) {
      case "ArrowUp": return this.scroll_by(-2 * ROW_HEIGHT)
      case "ArrowDown": return this.scroll_by(2 * ROW_HEIGHT)
      case "PageUp": return this.scroll_by(-this.view.height)
      case "PageDown": return this.scroll_by(this.view.height)
      case "Enter": this.select_middle(); return true
      case "m": this.measurement.toggle(row, "start"); return true
      case "M": this.measurement.toggle(row, "end"); return true
      case "t": return this.find_track()
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
