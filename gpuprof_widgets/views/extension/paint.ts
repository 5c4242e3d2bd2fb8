import type {Context2d} from "@bokehjs/core/util/canvas"
import type {PlotView} from "@bokehjs/models/plots/plot"

import type {Paint} from "./categories"
import {kernel_name, REGION_CATEGORIES} from "./engine"

/** Draws names into bars: whole, shortened with an ellipsis, or not at all. */
export class Labels {
  private readonly widths = new Map<string, number>()

  constructor(readonly font: string) {}

  /** Draws a text into a room; `short` takes its place where it does not fit. */
  draw(ctx: Context2d, text: string, x: number, y: number, room: number, short: string = text): void {
    const fitting = this.fit(ctx, short != text && this.width(ctx, text) > room ? short : text, room)
    if (fitting != "") {
      ctx.fillText(fitting, x, y)
    }
  }

  private width(ctx: Context2d, text: string): number {
    let width = this.widths.get(text)
    if (width == null) {
      width = ctx.measureText(text).width
      this.widths.set(text, width)
    }
    return width
  }

  /** The longest beginning of a text that fits; nothing where fewer than three letters would show. */
  private fit(ctx: Context2d, text: string, room: number): string {
    if (room < 16) {
      return ""
    }
    const width = this.width(ctx, text)
    if (width <= room) {
      return text
    }
    let length = Math.floor(text.length * (room / width))
    while (length >= 3 && this.width(ctx, `${text.slice(0, length)}…`) > room) {
      length -= 1
    }
    return length >= 3 ? `${text.slice(0, length)}…` : ""
  }
}

/** Pixels: a bar that is narrower or lower would be nothing but outline. */
const OUTLINED = 4

export function fill_bar(ctx: Context2d, {fill, outline}: Omit<Paint, "ink">, x: number, y: number, width: number, height: number): void {
  const has_outline = outline != null && width >= OUTLINED && height >= OUTLINED
  ctx.fillStyle = has_outline ? outline : fill
  ctx.fillRect(x, y, width, height)
  if (has_outline) {
    ctx.fillStyle = fill
    ctx.fillRect(x + 1, y + 1, width - 2, height - 2)
  }
}

/** Returns a kernel's own name, and the last part of a module's (`layers.3` of `encoder.layers.3`): the bars around it show the rest. */
export function short_name(name: string, category: string): string {
  if (category == "kernel") {
    return kernel_name(name)
  }
  return REGION_CATEGORIES.includes(category) && category != "cell_line" ? /[^.]+(\.\d+)*$/.exec(name)?.[0] ?? name : name
}

/** Draws inside a plot's frame, in CSS pixels from its top left corner. */
export function paint_frame(ctx: Context2d, plot_view: PlotView, draw: (width: number, height: number) => void): void {
  const {left, top, width, height} = plot_view.frame.bbox
  // A first paint may come before the layout has made room for the names: its ink would stay outside of the frame.
  if (width < 1 || height < 1 || left < (plot_view.model.min_border_left ?? 0)) {
    return
  }
  ctx.save()
  ctx.translate(-0.5, -0.5)
  ctx.translate(left, top)
  ctx.beginPath()
  // Bokeh clears and clips half a pixel off: in the canvas's first column and row old ink would shine through.
  const [x, y] = [left < 1 ? 1 : 0, top < 1 ? 1 : 0]
  ctx.rect(x, y, width - x, height - y)
  ctx.clip()
  draw(width, height)
  ctx.restore()
}

/** A time range (ns) over a width in pixels. */
type TimeScale = {start: number, end: number, width: number}

/** Returns the pixel of a time (ns). */
export function x_of(ns: number, {start, end, width}: TimeScale): number {
  return (ns - start) / (end - start) * width
}

/** Returns the pixel of a time (ns), or one a little outside of the view. */
export function x_near_view(ns: number, scale: TimeScale): number {
  return Math.max(-4, Math.min(x_of(ns, scale), scale.width + 4))
}
