import type * as p from "@bokehjs/core/properties"
import {Signal, Signal0} from "@bokehjs/core/signaling"
import type {Context2d} from "@bokehjs/core/util/canvas"
import {Renderer} from "@bokehjs/models/renderers/renderer"

import {css} from "./colour"
import {chain_text, facts_of} from "./details"
import type {Uncovered} from "./element"
import {
  bands, fullest_stretch, has_path, hit, nearest_edge, path_pieces, step_aside, step_level, tick_of_edge, TrackOrder,
  type Band, type Edge, type State, type Store,
} from "./engine"
import {Gutter, GUTTER_CSS, type TrackActions} from "./gutter"
import {undo_key, UNDO_KEYS, type Part} from "./journal"
import {paint_frame, paint_steps} from "./paint"
import type {Mark} from "./ruler"
import {RULER_CSS, RulerLine} from "./ruler_line"
import {FLAGS_CSS, flags_height, RemarkFlags} from "./remarks"
import {paint_ruler} from "./ruler_paint"
import {bring_into_view} from "./scroll_port"
import {select_event} from "./selection"
import {WheelLatch, type Point} from "./surface"
import {TimePlotView, type Drag} from "./time_plot"
import {paint_path, TimelinePainter, type View} from "./timeline_paint"
import {TraceStore} from "./trace_store"
import {
  first_order, folded_at_first, layout_tracks, place_at, ROW_HEIGHT, track_depths, y_of_lane, type Lane, type Lanes, type TrackLayout,
} from "./tracks"
import {reveal, zoom_to} from "./zoom"

const HIT_TOLERANCE = 3
/** Pixels within which the ends of a measurement snap to events. */
const SNAP = 8

/** The tracks over time, drawn on an ordinary Bokeh figure. */
export class TimelineView extends TimePlotView {
  declare model: Timeline

  protected readonly description = `Timeline. Arrow keys move, plus and minus zoom, Enter selects an event. ${UNDO_KEYS}`

  layout_of_tracks: TrackLayout
  /** Bars drawn in the last frame, for the tests. */
  bars_drawn = 0
  private folded: Set<number>
  private steps: Band[]
  private scroll = 0
  /** What is to bring the selected events into view as soon as the tracks have their height: the tracks, or the page as well. */
  private called_up: "tracks" | "page" | null = null
  private painter: TimelinePainter
  private readonly latch = new WheelLatch()
  protected override readonly css = GUTTER_CSS + RULER_CSS + FLAGS_CSS
  private remark_flags: RemarkFlags | null = null
  private ruler_line: RulerLine | null = null
  private readonly gutter = new Gutter(this.track_actions)
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
    this.folded = folded_at_first(this.data, this.model.depths, this.model.compact)
    if (this.model.folds_to_fit) {
      this.fold_to_fit()
    }
    this.steps = bands(this.data).filter(({kind}) => kind == "step")
    this.painter = new TimelinePainter(this.data)
    this.painter.recolour(this.store.theme.palette.background)
    if (this.store.focus != null) {
      this.unfold_lit()
      this.called_up = "tracks"
    }
    this.store.event_box = (row) => this.painter.box(this.layout_of_tracks, row, this.view)
    this.arrange()
  }

  override connect_signals(): void {
    super.connect_signals()
    const {store} = this
    this.connect(store.properties.show_path.change, () => this.request_paint())
    this.connect(store.selection_changed, () => this.follow_selection())
    this.connect(store.was_reset, () => this.scroll_to(0))
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

  private laid_out(): TrackLayout {
    const {depths, order, compact, max_height: room} = this.model
    return layout_tracks(this.data, {depths, folded: this.folded, order, compact, room})
  }

  private arrange(): void {
    const {compact, max_height, axis_height} = this.model
    this.layout_of_tracks = this.laid_out()
    const least = (compact ? 1 : 4) * ROW_HEIGHT
    this.plot_model.height = Math.min(max_height, Math.max(this.layout_of_tracks.height, least)) + axis_height + flags_height(this.store)
    this.gutter.fill(this.layout_of_tracks)
  }

  /** Folds the deepest tracks until all tracks are in view. */
  private fold_to_fit(): void {
    const {depths, max_height} = this.model
    const deepest = [...depths.keys()].sort((a, b) => depths[b] - depths[a])
    for (const track of deepest) {
      if (this.laid_out().height > max_height) {
        this.folded.add(track)
      }
    }
  }

  private get track_actions(): TrackActions {
    return {
      fold: (track) => this.fold(track),
      pin: (track) => this.pin(track),
      hide: (track) => this.model.reorder(this.model.order.hide(track)),
      move: (track, by) => this.model.reorder(this.model.order.move(track, by)),
      place: (track, at) => this.model.reorder(this.model.order.place(track, at)),
      scroll_into_view: (lane) => this.scroll_into_view(lane, lane.top, ROW_HEIGHT),
      scroll_to: (top) => this.scroll_to(top),
      key: (event) => event.key == "t" ? this.find_track() : undo_key(this.store.journal, event),
    }
  }

  private fold(track: number): void {
    if (!this.folded.delete(track)) {
      this.folded.add(track)
    }
    this.arrange_again()
  }

  private arrange_again(): void {
    this.arrange()
    this.scroll_to(this.scroll)
  }

  /** Pins a track or takes the pin away. One that is too tall to stay on top is folded. */
  private pin(track: number): void {
    this.model.reorder(this.model.order.pin(track))
    const lane = this.layout_of_tracks.by_track.get(track)!
    if (lane.is_pinned && !lane.is_stuck && lane.foldable && !lane.folded) {
      this.fold(track)
    }
  }

  /** Scrolls to a track that was looked for and marks its name; null takes the mark away. */
  private seek(sought: Sought | null): void {
    const lane = this.layout_of_tracks.by_track.get(sought?.track ?? -1)
    this.gutter.mark(lane?.track ?? -1)
    if (lane != null && sought != null) {
      const {stuck} = this.layout_of_tracks
      if (!lane.is_stuck) {
        this.scroll_to(lane.top - stuck - ROW_HEIGHT)
      }
      if (sought.on_screen) {
        const top = y_of_lane(lane, this.scroll)
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
    return {start, end, width, height, scroll: this.scroll}
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
    this.gutter.place(this.plot_view.frame.bbox, this.plot_view.bbox.width, this.scroll)
  }

  protected _paint(ctx: Context2d): void {
    this.mount()
    this.scroll = Math.max(0, Math.min(this.scroll, this.scroll_end))
    if (this.called_up != null && Math.abs(this.plot_view.bbox.height - this.plot_model.height!) < 1) {
      const {called_up} = this
      this.called_up = null
      this.come_into_view(called_up)
    }
    paint_frame(ctx, this.plot_view, () => this.paint_tracks(ctx))
  }

  private paint_tracks(ctx: Context2d): void {
    const {painter, view, layout_of_tracks: layout, store} = this
    const {selection} = store
    this.each_part(ctx, (part) => this.paint_headings(ctx, part === layout.parts.stuck))
    paint_steps(ctx, store, this.steps, view)
    const ranges = selection?.ranges ?? []
    const dim = selection != null && selection.source != "timeline" && selection.rows.length > 0
    this.bars_drawn = 0
    this.each_part(ctx, (part) => {
      this.bars_drawn += painter.bars(ctx, part, view, dim)
      if (selection != null && dim) {
        painter.highlight(ctx, part, selection.rows, view)
      }
      painter.ranges(ctx, part, ranges, view, store.theme.palette)
      if (store.show_path) {
        // Lines to tracks that stay on top end at their edge.
        const lanes = part === layout.parts.stuck ? part : layout
        paint_path(ctx, this.data, path_pieces(this.data), lanes, view, store.theme.palette)
      }
    })
    if (layout.stuck > 0) {
      ctx.fillStyle = css(store.theme.palette.edge)
      ctx.fillRect(0, layout.stuck - 2, view.width, 1)
    }
    const {marks} = store.ruler
    paint_ruler(ctx, marks, marks.map((mark) => this.y_of_mark(mark)), marks[0]?.store === store, view, store.theme.palette)
    if (selection != null && selection.row >= 0) {
      this.paint_links(ctx, selection.row, view)
    }
  }

  /** Draws the tracks that stay on top and those that scroll, each within their own part of the view. */
  private each_part(ctx: Context2d, draw: (part: Lanes) => void): void {
    const {layout_of_tracks: {stuck, parts}, view: {width, height}} = this
    for (const [part, top, bottom] of [[parts.scrolled, stuck, height], [parts.stuck, 0, stuck]] as const) {
      if (bottom > top) {
        ctx.save()
        ctx.beginPath()
        ctx.rect(0, top, width, bottom - top)
        ctx.clip()
        draw(part)
        ctx.restore()
      }
    }
  }

  private paint_headings(ctx: Context2d, of_stuck: boolean): void {
    const {palette} = this.store.theme
    ctx.fillStyle = css(palette.band)
    for (const {top, is_stuck} of this.layout_of_tracks.headings) {
      if (is_stuck == of_stuck) {
        ctx.fillRect(0, is_stuck ? top : top - this.scroll, this.view.width, 18)
      }
    }
  }

  private paint_links(ctx: Context2d, row: number, view: View): void {
    const {data, painter, layout_of_tracks: layout} = this
    const {palette} = this.store.theme
    const launch = data.owner[row]
    if (launch >= 0) {
      painter.arrow(ctx, layout, launch, row, view, palette)
    }
    for (const kernel of data.launched(row)) {
      painter.arrow(ctx, layout, row, kernel, view, palette)
    }
    if (data.forward[row] >= 0) {
      painter.arrow(ctx, layout, data.forward[row], row, view, palette)
    }
    painter.outline(ctx, layout, row, view, palette)
  }

  private event_at(x: number, y: number): number {
    const place = place_at(this.layout_of_tracks, y, this.scroll)
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

  /** The point under the pointer, on the nearest start or end of an event of its track if one is near. */
  private mark_at({x, y}: Point): Mark {
    const {data, layout_of_tracks: layout, view: {start, end, width}} = this
    const tick = data.tick(this.time_at(x))
    const place = place_at(layout, y, this.scroll)
    const edge = place == null ? null : nearest_edge(data, place.lane.track, place.depth, tick, data.tick((end - start) / width * SNAP))
    return edge == null ? {store: this.store, ns: data.ns(Math.round(tick)), edge} : this.mark_on(edge)
  }

  private mark_on(edge: Edge): Mark {
    return {store: this.store, ns: this.data.ns(tick_of_edge(this.data, edge)), edge}
  }

  /** The height at which a mark lies on an event of this trace. */
  private y_of_mark({store, edge}: Mark): number | null {
    const box = edge == null || store !== this.store ? null : this.painter.box(this.layout_of_tracks, edge.row, this.view)
    return box == null ? null : box[1] + box[3] / 2
  }

  /** Begins to measure, or ends it; a selected event gives a mark at its start or end. */
  private measure(row: number, side: Edge["side"]): boolean {
    const {ruler} = this.store
    if (row >= 0) {
      ruler.mark(this.mark_on({row, side}))
    } else {
      ruler.toggle()
    }
    return true
  }

  /** A drag from one point to another while the ruler is on. */
  private readonly measuring: Drag = {
    start: (point) => {
      this.store.ruler.start()
      this.store.ruler.mark(this.mark_at(point))
    },
    move: (point) => this.store.ruler.hover(this.mark_at(point)),
    end: (point) => this.store.ruler.mark(this.mark_at(point)),
    cancel: () => this.store.ruler.start(),
  }

  protected override drag_from(start: Point): Drag {
    return this.store.ruler.is_on && !start.event.shiftKey ? this.measuring : super.drag_from(start)
  }

  protected override leave(): void {
    super.leave()
    if (this.store.ruler.is_on) {
      this.store.ruler.hover(null)
    }
  }

  protected override click(point: Point): void {
    if (this.store.ruler.is_on) {
      this.store.ruler.mark(this.mark_at(point))
    } else {
      select_event(this.store, this.event_at(point.x, point.y))
    }
  }

  protected override double_click({x, y}: Point): void {
    this.zoom_on(this.event_at(x, y))
  }

  protected hover(point: Point): void {
    const {x, y, event} = point
    if (this.store.ruler.is_on) {
      this.surface.cursor("crosshair")
      this.tooltip?.hide()
      this.store.ruler.hover(this.mark_at(point))
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
    const [, y, , height] = this.painter.box(this.layout_of_tracks, row, this.view)!
    return {top: top + Math.max(0, y), bottom: Math.min(top + y + height, bottom), floor: bottom}
  }

  private zoom_on(row: number): void {
    if (row >= 0) {
      zoom_to(this.store, this.data.ns(this.data.ts[row]), this.data.ns(this.data.end[row]), 0.2)
    }
  }

  protected override wheel(event: WheelEvent, x: number): boolean {
    return super.wheel(event, x)
      || this.latch.scrolls(event, this.scroll, this.scroll_end) && this.scroll_to(this.scroll + event.deltaY)
  }

  private get scroll_end(): number {
    return Math.max(0, this.layout_of_tracks.height - this.plot_view.frame.bbox.height)
  }

  scroll_to(top: number): boolean {
    this.scroll = Math.max(0, Math.min(top, this.scroll_end))
    this.request_paint()
    return true
  }

  /** Scrolls until a stretch of a lane is in view, below the tracks that stay on top. */
  private scroll_into_view(lane: Lane, top: number, height: number): void {
    const {view: {height: room}, layout_of_tracks: {stuck}} = this
    if (lane.is_stuck) {
      this.request_paint()
    } else if (top < this.scroll + stuck) {
      this.scroll_to(top - stuck)
    } else if (top + height > this.scroll + room) {
      this.scroll_to(top + height - room)
    }
  }

  /** The selected events, those in the visible time range if any are. */
  private get lit_rows(): number[] {
    const {data, store: {selection, visible}} = this
    const rows = selection == null ? [] : selection.row >= 0 ? [selection.row] : [...selection.rows]
    const [start, end] = [data.tick(visible.start), data.tick(visible.end)]
    const seen = rows.filter((row) => data.end[row] >= start && data.ts[row] <= end)
    return seen.length > 0 ? seen : rows
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
    const tracks = new Set(this.lit_rows.map((row) => this.data.track[row]))
    const folded = [...tracks].filter((track) => this.folded.delete(track))
    this.model.reorder(this.model.order.show(tracks))
    return folded.length > 0
  }

  /** Scrolls the tracks until most of the selected events are in the middle, and the page until they are on screen. */
  private come_into_view(called_up: "tracks" | "page"): void {
    const {data, layout_of_tracks: {by_track, stuck}, view: {height}} = this
    const tops = this.lit_rows.flatMap((row) => {
      const lane = by_track.get(data.track[row])
      return lane == null || lane.is_stuck ? [] : [lane.top + data.depth[row] * lane.row_height]
    })
    const [first, last] = fullest_stretch(Float64Array.from(tops).sort(), height - stuck - ROW_HEIGHT)
    if (tops.length > 0) {
      this.scroll_to((first + last + ROW_HEIGHT - height - stuck) / 2)
    }
    if (called_up == "tracks") {
      return
    }
    const stretch = tops.length == 0 ? {top: 0, bottom: height} : {top: first - this.scroll, bottom: last + ROW_HEIGHT - this.scroll}
    bring_into_view(this.surface.el, stretch, this.around)
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
        this.scroll_to_event(row)
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
    if (this.layout_of_tracks.by_track.get(track)?.folded === true) {
      this.fold(track)
    }
    this.scroll_to_event(row)
  }

  private scroll_to_event(row: number): void {
    const {data} = this
    const lane = this.layout_of_tracks.by_track.get(data.track[row])
    if (lane != null) {
      this.scroll_into_view(lane, lane.top + data.depth[row] * lane.row_height, lane.row_height)
    }
  }

  protected override key(event: KeyboardEvent): boolean {
    const {store} = this
    const row = store.selection?.row ?? -1
    if (event.shiftKey && event.key.startsWith("Arrow")) {
      return this.step(row, event.key)
    }
    switch (event.key) {
      case "ArrowUp": return this.scroll_to(this.scroll - 2 * ROW_HEIGHT)
      case "ArrowDown": return this.scroll_to(this.scroll + 2 * ROW_HEIGHT)
      case "PageUp": return this.scroll_to(this.scroll - this.view.height)
      case "PageDown": return this.scroll_to(this.scroll + this.view.height)
      case "Enter": this.select_middle(); return true
      case "f": this.focus_selected(row); return true
      case "r": this.brush_selected(row); return true
      case "m": return this.measure(row, "start")
      case "M": return this.measure(row, "end")
      case "t": return this.find_track()
      case "c": store.show_path = !store.show_path && has_path(this.data); return true
      default: return super.key(event)
    }
  }

  private step(row: number, key: string): boolean {
    const next = key == "ArrowLeft" ? step_aside(this.data, row, -1)
      : key == "ArrowRight" ? step_aside(this.data, row, 1)
        : step_level(this.data, row, key == "ArrowUp" ? -1 : 1)
    if (next >= 0) {
      select_event(this.store, next)
    }
    return true
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

  private focus_selected(row: number): void {
    if (row >= 0) {
      this.zoom_on(row)
    } else if (this.store.window != null) {
      zoom_to(this.store, ...this.store.window)
    }
  }

  private brush_selected(row: number): void {
    const {data, store} = this
    if (store.ruler.measured != null) {
      store.ruler.brush()
      return
    }
    store.brush(row >= 0 ? [data.ns(data.ts[row]), data.ns(data.end[row])] : [store.visible.start, store.visible.end])
  }
}

type TimelineProps = {
  store: p.Property<TraceStore>
  axis_height: p.Property<number>
  max_height: p.Property<number>
  compact: p.Property<boolean>
  folds_to_fit: p.Property<boolean>
  drag_pans: p.Property<boolean>
}

export interface Timeline extends p.AttrsOf<TimelineProps> {}

/** A track that was looked for; whether the page scrolls to it, and whether its name takes the focus. */
type Sought = {track: number, on_screen: boolean, takes_focus: boolean}

export class Timeline extends Renderer implements Part {
  declare properties: Renderer.Props & TimelineProps

  static override __module__ = "gpuprof_widgets"

  /** Number of nesting levels of every track. */
  depths: number[]
  /** The tracks as the reader has arranged them. */
  order: TrackOrder
  private first_order: TrackOrder
  order_changed: Signal0<this>
  sought: Signal<Sought | null, this>
  /** Somebody wants to find a track. */
  find_called: Signal0<this>
  private prepared: Promise<void> | null = null

  static {
    this.prototype.default_view = TimelineView
    this.define<TimelineProps>(({Bool, Float, Ref}) => ({
      store: [Ref(TraceStore)],
      axis_height: [Float, 24],
      max_height: [Float, 500],
      compact: [Bool, false],
      folds_to_fit: [Bool, false],
      drag_pans: [Bool, false],
    }))
  }

  override initialize(): void {
    super.initialize()
    this.order_changed = new Signal0(this, "order_changed")
    this.sought = new Signal(this, "sought")
    this.find_called = new Signal0(this, "find_called")
  }

  override connect_signals(): void {
    super.connect_signals()
    this.connect(this.store.was_reset, () => this.reorder(this.first_order))
  }

  /** Puts the tracks into their first order once the trace is there. */
  prepare(): Promise<void> {
    return this.prepared ??= this.store.ready.then((data) => {
      this.depths = track_depths(data)
      this.order = this.first_order = first_order(data, this.depths, this.compact)
      this.store.journal.join(this)
    })
  }

  reorder(order: TrackOrder): void {
    if (order !== this.order) {
      this.order = order
      this.order_changed.emit()
      this.store.journal.note()
    }
  }

  remember(): State {
    const {order} = this
    return {marks: [order], restore: () => this.reorder(order)}
  }

  /** Escape leaves the tracks as they are. */
  clear(): boolean {
    return false
  }
}
