import type {Context2d} from "@bokehjs/core/util/canvas"

import {css} from "./colour"
import type {PathPiece, Store} from "./engine"
import type {Palette} from "./theme"
import type {View} from "./timeline_paint"
import type {TrackLayout} from "./track_layout"

/** Okabe-Ito's vermillion, of which no bar of the timeline that can lie on the path is. */
const LIGHT = "#c23b00"
const DARK = "#ff8a4d"
const UNDERLINE = 3
/** Pixels: connectors that are closer to the last one between the same tracks are left out. */
const APART = 3

/** The critical path: its slices outlined, and thin lines from each to the next on another track. */
export function paint_path(ctx: Context2d, store: Store, pieces: PathPiece[], layout: TrackLayout, view: View, palette: Palette): void {
  const colour = palette.dark ? DARK : LIGHT
  const scale = view.width / (view.end - view.start)
  const x_of = (ns: number): number => (ns - view.start) * scale
  const ends = new Map<string, number>()
  const joined = new Map<string, number>()
  let last: {x: number, y: number, track: number} | null = null
  for (const piece of pieces) {
    const lane = layout.by_track.get(piece.row < 0 ? piece.track : store.track[piece.row])
    if (lane == null) {
      continue
    }
    const [x0, x1] = [x_of(piece.start), x_of(piece.end)]
    // Where the page does not have the slice, its track is underlined.
    const depth = piece.row < 0 ? lane.depths - 1 : store.depth[piece.row]
    const y = lane.top + (depth + 1) * lane.row_height - view.scroll
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

/** Narrow pieces are underlined only: an outline would hide them. */
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
