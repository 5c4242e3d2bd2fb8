import type * as p from "@bokehjs/core/properties"
import type {Context2d} from "@bokehjs/core/util/canvas"
import {Renderer} from "@bokehjs/models/renderers/renderer"

import {css} from "./colour"
import {chain_text, facts_of} from "./details"
import type {Uncovered} from "./element"
import {bands, fullest_stretch, has_path, hit, path_pieces, type Band, type Store} from "./engine"
import {UNDO_KEYS} from "./journal"
import {paint_bands, paint_edges, paint_frame} from "./paint"
import {bring_into_view} from "./scroll_port"
import {WheelLatch, type Point} from "./surface"
import {TimePlotView} from "./time_plot"
import {paint_path, TimelinePainter, type View} from "./timeline_paint"
import {reveal, select_event, TraceStore, zoom_to} from "./trace_store"
import {folded_at_first, Gutter, layout_tracks, place_at, ROW_HEIGHT, track_depths, type TrackLayout} from "./tracks"

const HIT_TOLERANCE = 3

/** The tracks over time, drawn on an ordinary Bokeh figure. */
export class TimelineView extends TimePlotView {
  declare model: Timeline

  protected readonly description = `Timeline. Arrow keys move, plus and minus zoom, Enter selects an event. ${UNDO_KEYS}`

  layout_of_tracks: TrackLayout
  /** Bars drawn in the last frame, for the tests. */
  bars_drawn = 0
  private depths: number[]
  private folded: Set<number>
  private steps: Band[]
  private scroll = 0
  /** Whether the selected events are to come into view as soon as the tracks have their height. */
  private is_called_up = false
  private painter: TimelinePainter
  private readonly latch = new WheelLatch()
  private readonly gutter = new Gutter(
    (lane) => this.fold(lane), (top, height) => this.scroll_into_view(top, height), (y) => this.scroll_to(y))
  protected readonly labels = this.gutter.box

  get store(): TraceStore {
    return this.model.store
  }

  get data(): Store {
    return this.store.data
  }

  override async lazy_initialize(): Promise<void> {
    await super.lazy_initialize()
    this.depths = track_depths(this.data)
    this.folded = folded_at_first(this.data, this.depths, this.model.compact)
    if (this.model.folds_to_fit) {
      this.fold_to_fit()
    }
    this.steps = bands(this.data).filter(({kind}) => kind == "step")
    this.painter = new TimelinePainter(this.data)
    this.painter.recolour(this.store.theme.palette.background)
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
    this.connect(store.theme.changed, () => this.painter.recolour(store.theme.palette.background))
  }

  override remove(): void {
    this.latch.remove()
    this.gutter.bar.remove()
    super.remove()
  }

  private arrange(): void {
    const {compact, max_height, axis_height} = this.model
    this.layout_of_tracks = layout_tracks(this.data, this.depths, this.folded, compact)
    const least = (compact ? 1 : 4) * ROW_HEIGHT
    this.plot_model.height = Math.min(max_height, Math.max(this.layout_of_tracks.height, least)) + axis_height
    this.gutter.fill(this.layout_of_tracks)
  }

  /** Folds the deepest tracks until all tracks are in view. */
  private fold_to_fit(): void {
    const deepest = [...this.depths.keys()].sort((a, b) => this.depths[b] - this.depths[a])
    for (const track of deepest) {
      if (layout_tracks(this.data, this.depths, this.folded, this.model.compact).height > this.model.max_height) {
        this.folded.add(track)
      }
    }
  }

  private fold(track: number): void {
    if (!this.folded.delete(track)) {
      this.folded.add(track)
    }
    this.arrange()
    this.scroll_to(this.scroll)
  }

  override get view(): View {
    const {width, height} = this.plot_view.frame.bbox
    const {start, end} = this.store.visible
    return {start, end, width, height, scroll: this.scroll}
  }

  protected override get drag_pans(): boolean {
    return this.model.drag_pans
  }

  protected override mount(): void {
    super.mount()
    if (!this.gutter.bar.isConnected) {
      this.labels.after(this.gutter.bar)
    }
    this.gutter.place(this.plot_view.frame.bbox, this.plot_view.bbox.width, this.scroll)
  }

  protected _paint(ctx: Context2d): void {
    this.mount()
    this.scroll = Math.max(0, Math.min(this.scroll, this.scroll_end))
    if (this.is_called_up && Math.abs(this.plot_view.bbox.height - this.plot_model.height!) < 1) {
      this.is_called_up = false
      this.come_into_view()
    }
    paint_frame(ctx, this.plot_view, () => this.paint_tracks(ctx))
  }

  private paint_tracks(ctx: Context2d): void {
    const {painter, view, layout_of_tracks: layout, store} = this
    const {selection} = store
    this.paint_headings(ctx, view)
    paint_bands(ctx, store, this.steps, view)
    const ranges = selection?.ranges ?? []
    const is_of_range = ranges.length > 0 || selection?.source == "finding"
    const dim = selection != null && selection.source != "timeline" && (selection.rows.length > 0 || !is_of_range)
    this.bars_drawn = painter.bars(ctx, layout, view, dim)
    if (selection != null && dim) {
      painter.highlight(ctx, layout, selection.rows, view)
    }
    painter.ranges(ctx, layout, ranges, view, store.theme.palette)
    if (store.show_path) {
      paint_path(ctx, this.data, path_pieces(this.data), layout, view, store.theme.palette)
    }
    paint_edges(ctx, store, view)
    if (selection != null && selection.row >= 0) {
      this.paint_links(ctx, selection.row, view)
    }
  }

  private paint_headings(ctx: Context2d, view: View): void {
    const {palette} = this.store.theme
    ctx.fillStyle = css(palette.band)
    for (const {top} of this.layout_of_tracks.headings) {
      ctx.fillRect(0, top - view.scroll, view.width, 18)
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
    const place = place_at(this.layout_of_tracks, y + this.scroll)
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
    this.zoom_on(this.event_at(x, y))
  }

  protected hover({x, y, event}: Point): void {
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

  private scroll_into_view(top: number, height: number): void {
    const {height: room} = this.view
    if (top < this.scroll) {
      this.scroll_to(top)
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

  /** Unfolds the tracks of the selected events; all comes into view once the tracks have their new height. */
  private call_up(takes_focus: boolean): void {
    const folded = new Set(this.lit_rows.map((row) => this.data.track[row]).filter((track) => this.folded.delete(track)))
    if (folded.size > 0) {
      this.arrange()
    }
    this.is_called_up = true
    if (takes_focus) {
      this.surface.el.focus({preventScroll: true})
    }
    this.request_paint()
  }

  /** Scrolls the tracks until most of the selected events are in the middle, and the page until they are on screen. */
  private come_into_view(): void {
    const {data, layout_of_tracks: {by_track}, view: {height}} = this
    const tops = this.lit_rows.flatMap((row) => {
      const lane = by_track.get(data.track[row])
      return lane == null ? [] : [lane.top + data.depth[row] * lane.row_height]
    })
    const [first, last] = fullest_stretch(Float64Array.from(tops).sort(), height - ROW_HEIGHT)
    if (tops.length > 0) {
      this.scroll_to((first + last + ROW_HEIGHT - height) / 2)
    }
    const stretch = tops.length == 0 ? {top: 0, bottom: height} : {top: first - this.scroll, bottom: last + ROW_HEIGHT - this.scroll}
    const {el} = this.plot_view
    const {top} = this.surface.el.getBoundingClientRect()
    bring_into_view(this.surface.el, stretch, {
      top: (el.previousElementSibling ?? el).getBoundingClientRect().top - top,
      bottom: (el.nextElementSibling ?? el).getBoundingClientRect().bottom - top,
    })
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

  /** Unfolds the track of an event and scrolls to its level. */
  bring_into_view(row: number): void {
    const track = this.data.track[row]
    if (this.layout_of_tracks.by_track.get(track)?.folded === true) {
      this.fold(track)
    }
    this.scroll_to_event(row)
  }

  private scroll_to_event(row: number): void {
    const {data} = this
    const lane = this.layout_of_tracks.by_track.get(data.track[row])
    if (lane != null) {
      this.scroll_into_view(lane.top + data.depth[row] * lane.row_height, lane.row_height)
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
    store.brush(row >= 0 ? [data.ns(data.ts[row]), data.ns(data.end[row])] : [store.visible.start, store.visible.end])
  }
}

/** The next or previous event on the same track and level; -1 at the end. */
function step_aside(data: Store, row: number, direction: 1 | -1): number {
  if (row < 0) {
    return -1
  }
  for (let next = row + direction; next >= 0 && next < data.rows && data.track[next] == data.track[row]; next += direction) {
    if (data.depth[next] == data.depth[row]) {
      return next
    }
  }
  return -1
}

/** The event that contains this one (-1), or the first one that it contains (+1). */
function step_level(data: Store, row: number, direction: 1 | -1): number {
  if (row < 0) {
    return -1
  }
  if (direction == -1) {
    return data.parent[row]
  }
  for (let next = row + 1; next < data.rows && data.track[next] == data.track[row] && data.ts[next] < data.end[row]; next++) {
    if (data.parent[next] == row) {
      return next
    }
  }
  return -1
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

export class Timeline extends Renderer {
  declare properties: Renderer.Props & TimelineProps

  static override __module__ = "gpuprof_widgets.views.models"

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
}
