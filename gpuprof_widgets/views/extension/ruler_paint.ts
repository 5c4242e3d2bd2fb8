import type {Context2d} from "@bokehjs/core/util/canvas"

import {css} from "./colour"
import {format_ns} from "./engine"
import {x_of} from "./paint"
import type {Mark} from "./ruler"
import type {Palette} from "./theme"

const FONT = "bold 11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
const PILL_HEIGHT = 16
const DOT = 3.5

type View = {start: number, end: number, width: number, height: number}

/**
 * Draws a line through each mark, a dot where it lies on an event of this trace (`heights`; null elsewhere), and, where the first
 * mark is of this trace, the time in between.
 */
export function paint_ruler(
  ctx: Context2d, marks: Mark[], heights: (number | null)[], is_first_here: boolean, view: View, palette: Palette,
): void {
  const [ink, paper] = [css(palette.foreground), css(palette.background)]
  const xs = marks.map(({ns}) => x_of(ns, view))
  xs.forEach((x, i) => {
    stroke(ctx, [[x, 0], [x, view.height]], [4, 3], ink, paper)
    const y = heights[i]
    if (y != null) {
      for (const [colour, radius] of [[paper, DOT + 1.5], [ink, DOT]] as const) {
        ctx.fillStyle = colour
        ctx.beginPath()
        ctx.arc(x, y, radius, 0, 2 * Math.PI)
        ctx.fill()
      }
    }
  })
  if (marks.length == 2 && is_first_here) {
    const at = heights.find((y) => y != null) ?? 0
    const y = Math.max(PILL_HEIGHT, Math.min(at, view.height - PILL_HEIGHT))
    stroke(ctx, [[xs[0], y], [xs[1], y]], [], ink, paper)
    paint_pill(ctx, format_ns(marks[1].ns - marks[0].ns), [xs[0], xs[1]], y, view, ink, paper)
  }
}

function stroke(ctx: Context2d, [from, to]: [number, number][], dash: number[], ink: string, paper: string): void {
  for (const [colour, width, dashes] of [[paper, 3, []], [ink, 1.25, dash]] as const) {
    ctx.strokeStyle = colour
    ctx.lineWidth = width
    ctx.setLineDash([...dashes])
    ctx.beginPath()
    ctx.moveTo(...from)
    ctx.lineTo(...to)
    ctx.stroke()
  }
  ctx.setLineDash([])
}

/** A text in the middle of what is in view of two ends, beside them where it has no room between them. */
function paint_pill(ctx: Context2d, text: string, ends: [number, number], y: number, view: View, ink: string, paper: string): void {
  ctx.font = FONT
  ctx.textBaseline = "middle"
  ctx.textAlign = "left"
  const width = ctx.measureText(text).width + 12
  const [from, to] = [Math.max(0, ends[0]), Math.min(view.width, ends[1])]
  const beside = to + DOT + 4 + width <= view.width ? to + DOT + 4 : from - DOT - 4 - width
  const x = to - from >= width + 4 * DOT ? (from + to - width) / 2 : beside
  ctx.fillStyle = ink
  ctx.beginPath()
  ctx.roundRect(x, y - PILL_HEIGHT / 2, width, PILL_HEIGHT, 4)
  ctx.fill()
  ctx.fillStyle = paper
  ctx.fillText(text, x + 6, y + 0.5)
}
