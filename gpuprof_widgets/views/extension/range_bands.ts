import type {Context2d} from "@bokehjs/core/util/canvas"

import {css} from "./colour"
import type {Band} from "./engine"
import type {TraceStore} from "./trace_store"

type Scale = {start: number, end: number, width: number, height: number}

function x_of(ns: number, {start, end, width}: Scale): number {
  return (ns - start) / (end - start) * width
}

/** Behind the bars: every other training step shaded, and what lies outside the brushed range veiled. */
export function paint_bands(ctx: Context2d, store: TraceStore, steps: Band[], scale: Scale): void {
  const {palette} = store.theme
  ctx.fillStyle = css(palette.band)
  steps.forEach((step, i) => {
    const x0 = x_of(store.data.ns(step.start), scale)
    const x1 = x_of(store.data.ns(step.end), scale)
    if (i % 2 == 1 && x1 > 0 && x0 < scale.width) {
      ctx.fillRect(x0, 0, x1 - x0, scale.height)
    }
  })
  const range = store.draft ?? store.window
  if (range != null) {
    paint_range(ctx, store, range, scale)
  }
}

function paint_range(ctx: Context2d, store: TraceStore, range: [number, number], scale: Scale): void {
  const {palette} = store.theme
  const x0 = Math.max(-2, Math.min(x_of(range[0], scale), scale.width + 2))
  const x1 = Math.max(-2, Math.min(x_of(range[1], scale), scale.width + 2))
  ctx.save()
  ctx.globalAlpha = palette.dark ? 0.22 : 0.14
  ctx.fillStyle = css(palette.accent)
  ctx.fillRect(x0, 0, x1 - x0, scale.height)
  ctx.restore()
  ctx.fillStyle = css(palette.accent)
  ctx.fillRect(x0 - 1, 0, 2, scale.height)
  ctx.fillRect(x1 - 1, 0, 2, scale.height)
}
