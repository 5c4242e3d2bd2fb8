import type {Context2d} from "@bokehjs/core/util/canvas"
import type {PlotView} from "@bokehjs/models/plots/plot"

/** Draws inside a plot's frame, in CSS pixels from its top left corner. */
export function paint_frame(ctx: Context2d, plot_view: PlotView, draw: (width: number, height: number) => void): void {
  const {left, top, width, height} = plot_view.frame.bbox
  // A first paint may come before the layout has made room for the names: its ink would stay beside the frame.
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
