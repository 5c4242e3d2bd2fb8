import type {Context2d} from "@bokehjs/core/util/canvas"

/** Draws names into bars: whole, shortened with an ellipsis, or not at all. */
export class Labels {
  private readonly widths = new Map<string, number>()

  constructor(readonly font: string) {}

  draw(ctx: Context2d, text: string, x: number, y: number, room: number): void {
    const fitting = this.fit(ctx, text, room)
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
