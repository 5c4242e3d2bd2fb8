import type {Context2d} from "@bokehjs/core/util/canvas"

import {REGION_CATEGORIES} from "./engine"

/** Draws names into bars: whole, shortened with an ellipsis, or not at all. */
export class Labels {
  private readonly widths = new Map<string, number>()

  constructor(readonly font: string) {}

  /** `short` stands in where the whole text does not fit. */
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

/** The last part of a module's name, which the bars around it begin: `layers.3` of `encoder.layers.3`. */
export function short_name(name: string, category: string): string {
  return REGION_CATEGORIES.includes(category) && category != "cell_line" ? /[^.]+(\.\d+)*$/.exec(name)?.[0] ?? name : name
}
