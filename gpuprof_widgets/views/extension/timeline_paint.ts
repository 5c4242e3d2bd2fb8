import type {Context2d} from "@bokehjs/core/util/canvas"

import {paint_of, type BarPaint} from "./categories"
import {css, type RGB} from "./colour"
import {
  bands, lanes_of_rows, level_of_detail, marks_of, path_pieces,
  type Band, type LaneSlices, type LevelOfDetail, type PathPiece, type Store,
} from "./engine"
import {fill_bar, Labels, short_name, x_of} from "./paint"
import type {Selection} from "./report_state"
import type {Palette} from "./theme"
import type {Lane, TrackLayout} from "./tracks"

/** The visible part: a time range (ns) over a width, and the scrolled distance of the tracks (pixels). */
export type View = {start: number, end: number, width: number, height: number, scroll: number}

/** x, y, width, height in pixels. */
export type Box = [number, number, number, number]

/** What is selected on the page, whether the critical path is shown, and the colours. */
type Shown = {selection: Selection | null, show_path: boolean, palette: Palette}

const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"

/** Draws the tracks of the timeline at the resolution of the screen. */
export class TimelinePainter {
  private readonly labels = new Labels(FONT)
  private paints: BarPaint[] = []
  /** The selected rows of the last frame, by track and level. */
  private selected: {rows: Int32Array | null, lanes: LaneSlices[]} = {rows: null, lanes: []}

  private readonly steps: Band[]

  constructor(private readonly store: Store) {
    this.steps = bands(store).filter(({kind}) => kind == "step")
  }

  recolour(background: RGB): void {
    const {label, names, categories, families} = this.store.header
    this.paints = label.map(([name, category], i) => paint_of(names[name], categories[category], background, families[i]))
  }

  x_of(tick: number, view: View): number {
    return x_of(this.store.ns(tick), view)
  }

  /** Draws all tracks with what is selected on the page. */
  tracks(ctx: Context2d, layout: TrackLayout, view: View, {selection, show_path, palette}: Shown): void {
    ctx.fillStyle = css(palette.band)
    for (const {top} of layout.headings) {
      ctx.fillRect(0, top - view.scroll, view.width, 18)
    }
    this.shade_steps(ctx, view)
    const dim = selection != null && selection.source != "timeline" && selection.rows.length > 0
    this.bars(ctx, layout, view, dim)
    if (dim) {
      this.highlight(ctx, layout, selection.rows, view)
    }
    this.ranges(ctx, layout, selection?.ranges ?? [], view, palette)
    if (show_path) {
      paint_path(ctx, this.store, path_pieces(this.store), layout, view, palette)
    }
  }

  /** Shades every other training step, behind the bars. */
  private shade_steps(ctx: Context2d, view: View): void {
    this.steps.forEach((step, i) => {
      const [x0, x1] = [this.x_of(step.start, view), this.x_of(step.end, view)]
      if (i % 2 == 1 && x1 > 0 && x0 < view.width) {
        ctx.fillRect(x0, 0, x1 - x0, view.height)
      }
    })
  }

  /** Draws all bars, dimmed where something is selected. */
  private bars(ctx: Context2d, {lanes}: TrackLayout, view: View, dim: boolean): void {
    this.prepare(ctx)
    for (const lane of lanes) {
      const y = lane.top - view.scroll
      if (y + lane.height >= 0 && y <= view.height) {
        for (let depth = 0; depth < lane.depths; depth++) {
          this.level(ctx, lane, depth, view, dim)
        }
      }
    }
  }

  private prepare(ctx: Context2d): void {
    ctx.font = FONT
    ctx.textBaseline = "middle"
    ctx.textAlign = "left"
  }

  private level(ctx: Context2d, lane: Lane, depth: number, view: View, dim: boolean): void {
    const y = lane.top - view.scroll + depth * lane.row_height
    if (y + lane.row_height < 0 || y > view.height) {
      return
    }
    const {store} = this
    const marks = level_of_detail(store, lane.track, depth, store.tick(view.start), store.tick(view.end), view.width)
    this.marks(ctx, marks, y, lane, view, dim)
  }

  private marks(ctx: Context2d, marks: LevelOfDetail, y: number, lane: Lane, view: View, dim: boolean): void {
    for (let i = 0; i < marks.n; i++) {
      const x0 = this.x_of(marks.x0[i], view)
      const x1 = this.x_of(marks.x1[i], view)
      this.bar(ctx, marks.row[i], x0, x1, y, lane.row_height, dim, marks.merged[i] <= 1)
    }
  }

  private bar(ctx: Context2d, row: number, x0: number, x1: number, y: number, row_height: number, dim: boolean, named: boolean): void {
    const paint = this.paints[this.store.label[row]]
    const left = Math.max(x0, -2)
    const width = Math.min(x1, 1e5) - left
    const gap = width > 3 ? 1 : 0
    const height = row_height > 4 ? row_height - 1 : row_height
    fill_bar(ctx, dim ? {fill: paint.dim_fill, outline: null} : paint, left, y, Math.max(width - gap, 1), height)
    if (named && row_height >= 12) {
      ctx.fillStyle = dim ? paint.dim_ink : paint.ink
      const from = Math.max(left, 0) + 3
      const name = this.store.name(row)
      this.labels.draw(ctx, name, from, y + height / 2 + 0.5, left + width - gap - 2 - from, short_name(name, this.store.category(row)))
    }
  }

  /** The selected events in full colour over the others. */
  private highlight(ctx: Context2d, {by_track}: TrackLayout, rows: Int32Array, view: View): void {
    const {store} = this
    this.prepare(ctx)
    for (const slices of this.lanes_of(rows)) {
      const lane = by_track.get(slices.track)!
      const y = lane.top - view.scroll + slices.depth * lane.row_height
      if (y + lane.row_height >= 0 && y <= view.height) {
        this.marks(ctx, marks_of(store, slices, store.tick(view.start), store.tick(view.end), view.width), y, lane, view, false)
      }
    }
  }

  private lanes_of(rows: Int32Array): LaneSlices[] {
    if (this.selected.rows !== rows) {
      this.selected = {rows, lanes: lanes_of_rows(this.store, rows)}
    }
    return this.selected.lanes
  }

  /** Ranges of time that are selected, each on its track or on all of them, at most one per pixel. */
  private ranges(ctx: Context2d, {by_track}: TrackLayout, ranges: [number, number, number][], view: View, palette: Palette): void {
    const last = new Map<number, number>()
    ctx.fillStyle = css(palette.accent)
    for (const [start, end, track] of ranges) {
      const x0 = x_of(start, view)
      const x1 = Math.max(x_of(end, view), x0 + 1)
      const from = Math.max(x0, last.get(track) ?? -4)
      const lane = by_track.get(track)
      if (x1 - from < 0.5 || x0 > view.width) {
        continue
      }
      last.set(track, x1)
      const [top, height] = lane == null ? [0, view.height] : [lane.top - view.scroll, lane.height]
      const width = Math.min(x1, view.width + 4) - from
      ctx.globalAlpha = palette.dark ? 0.32 : 0.22
      ctx.fillRect(from, top, width, height)
      ctx.globalAlpha = 1
      ctx.fillRect(from, top + height - 3, width, 2)
    }
  }

  /** Rectangle of one event in the view: x, y, width, height. */
  box({by_track}: TrackLayout, row: number, view: View): Box {
    const {store} = this
    const lane = by_track.get(store.track[row])!
    const x0 = this.x_of(store.ts[row], view)
    const x1 = this.x_of(store.end[row], view)
    return [x0, lane.top - view.scroll + store.depth[row] * lane.row_height, Math.max(x1 - x0, 1), lane.row_height]
  }

  /** An event outlined, with curves from what caused it and to what it caused. */
  links(ctx: Context2d, lanes: TrackLayout, row: number, view: View, palette: Palette): void {
    const {store} = this
    const launch = store.owner[row]
    if (launch >= 0) {
      this.arrow(ctx, lanes, launch, row, view, palette)
    }
    for (const kernel of store.launched(row)) {
      this.arrow(ctx, lanes, row, kernel, view, palette)
    }
    if (store.forward[row] >= 0) {
      this.arrow(ctx, lanes, store.forward[row], row, view, palette)
    }
    this.outline(ctx, lanes, row, view, palette)
  }

  private outline(ctx: Context2d, lanes: TrackLayout, row: number, view: View, palette: Palette): void {
    const [x, y, width, height] = this.box(lanes, row, view)
    const left = Math.max(x, -4)
    const right = Math.min(x + width, view.width + 4)
    ctx.lineWidth = 2
    ctx.strokeStyle = css(palette.foreground)
    ctx.strokeRect(left - 0.5, y - 0.5, Math.max(right - left, 2), height)
  }

  /** Draws a curve from an event to one that it caused: from a launch to its kernel, from forward to backward. */
  private arrow(ctx: Context2d, lanes: TrackLayout, source: number, target: number, view: View, palette: Palette): void {
    const from = this.box(lanes, source, view)
    const to = this.box(lanes, target, view)
    const down = to[1] >= from[1]
    const x0 = from[0] + Math.min(from[2], 4) / 2
    const y0 = down ? from[1] + from[3] : from[1]
    const x1 = to[0]
    const y1 = down ? to[1] : to[1] + to[3]
    const bend = (y1 - y0) / 2
    for (const [style, width] of [[css(palette.background), 5], [css(palette.foreground), 1.75]] as const) {
      ctx.strokeStyle = style
      ctx.fillStyle = style
      ctx.lineWidth = width
      ctx.beginPath()
      ctx.moveTo(x0, y0)
      ctx.bezierCurveTo(x0, y0 + bend, x1, y1 - bend, x1, y1)
      ctx.stroke()
    }
    const size = down ? -6 : 6
    ctx.beginPath()
    ctx.moveTo(x1, y1)
    ctx.lineTo(x1 - 4, y1 + size)
    ctx.lineTo(x1 + 4, y1 + size)
    ctx.fill()
  }
}

/** Shades of Okabe-Ito's vermillion: no bar that can be on the path has it. */
const LIGHT = "#c23b00"
const DARK = "#ff8a4d"
const UNDERLINE = 3
/** Pixels: connectors that are closer to the last one between the same tracks are left out. */
const APART = 3

/** The critical path: its slices outlined, and thin lines from each to the next on another track. */
function paint_path(ctx: Context2d, store: Store, pieces: PathPiece[], {by_track}: TrackLayout, view: View, palette: Palette): void {
  const colour = palette.dark ? DARK : LIGHT
  const ends = new Map<string, number>()
  const joined = new Map<string, number>()
  let last: {x: number, y: number, track: number} | null = null
  for (const piece of pieces) {
    const lane = by_track.get(piece.row < 0 ? piece.track : store.track[piece.row])
    if (lane == null) {
      continue
    }
    const [x0, x1] = [x_of(piece.start, view), x_of(piece.end, view)]
    // Where the page does not have the slice, its track is underlined.
    const depth = piece.row < 0 ? lane.depths - 1 : store.depth[piece.row]
    const y = lane.top - view.scroll + (depth + 1) * lane.row_height
    const level = `${lane.track} ${depth}`
    const in_view = x1 >= 0 && x0 <= view.width
    if (in_view && last != null && last.track != lane.track) {
      const pair = `${last.track} ${lane.track}`
      if (x0 - (joined.get(pair) ?? -Infinity) >= APART) {
        connector(ctx, last.x, last.y, x0, y - 1, css(palette.background), colour)
        joined.set(pair, x0)
      }
    }
    last = {x: x1, y: y - 1, track: lane.track}
    if (in_view && x1 - (ends.get(level) ?? -Infinity) >= 0.5) {
      outline(ctx, Math.max(x0, -4), Math.min(x1, view.width + 4), y, lane.row_height, css(palette.background), colour)
      ends.set(level, x1)
    }
  }
}

/** Outlines a piece of the path, or underlines it where it is so narrow that an outline would hide it. */
function outline(ctx: Context2d, x0: number, x1: number, bottom: number, row_height: number, background: string, colour: string): void {
  const width = Math.max(x1 - x0, 1.5)
  const thick = Math.min(UNDERLINE, Math.max(row_height / 4, 1))
  ctx.fillStyle = background
  ctx.fillRect(x0, bottom - thick - 1.5, width, thick + 1.5)
  ctx.fillStyle = colour
  ctx.fillRect(x0, bottom - thick - 0.5, width, thick)
  if (width > 8 && row_height > 8) {
    ctx.strokeStyle = colour
    ctx.lineWidth = 1.5
    ctx.strokeRect(x0 + 0.75, bottom - row_height + 0.75, width - 1.5, row_height - 2)
  }
}

function connector(ctx: Context2d, x0: number, y0: number, x1: number, y1: number, background: string, colour: string): void {
  for (const [style, width] of [[background, 3], [colour, 1.25]] as const) {
    ctx.strokeStyle = style
    ctx.lineWidth = width
    ctx.beginPath()
    ctx.moveTo(x0, y0)
    ctx.lineTo(x1, y1)
    ctx.stroke()
  }
}
