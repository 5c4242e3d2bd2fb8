import type {Context2d} from "@bokehjs/core/util/canvas"

import {css} from "./colour"
import type {Band} from "./engine"
import type {TraceStore} from "./trace_store"

type Scale = {start: number, end: number, width: number, height: number}

function x_of(ns: number, {start, end, width}: Scale): number {
  return (ns - start) / (end - start) * width
}

/** Behind the bars: every other training step and the brushed range are shaded. */
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
  const edges = range_edges(store, scale)
  if (edges != null) {
    ctx.save()
    ctx.globalAlpha = palette.dark ? 0.22 : 0.14
    ctx.fillStyle = css(palette.accent)
    ctx.fillRect(edges[0], 0, edges[1] - edges[0], scale.height)
    ctx.restore()
  }
}

/** Over the bars: where the brushed range begins and ends. */
export function paint_edges(ctx: Context2d, store: TraceStore, scale: Scale): void {
  const {palette} = store.theme
  for (const x of range_edges(store, scale) ?? []) {
    ctx.fillStyle = css(palette.background)
    ctx.fillRect(x - 2, 0, 4, scale.height)
    ctx.fillStyle = css(palette.accent)
    ctx.fillRect(x - 1, 0, 2, scale.height)
  }
}

/** Both edges of the range, in pixels, not far outside the view; null without a range. */
function range_edges(store: TraceStore, scale: Scale): [number, number] | null {
  const range = store.draft ?? store.window
  const x = (ns: number): number => Math.max(-4, Math.min(x_of(ns, scale), scale.width + 4))
  return range == null ? null : [x(range[0]), x(range[1])]
}
