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
  // Bokeh draws, and so clears, half a pixel off: without this the first column and row would keep old ink.
  ctx.clearRect(0, 0, 1, plot_view.bbox.height)
  ctx.clearRect(0, 0, plot_view.bbox.width, 1)
  ctx.translate(left, top)
  ctx.beginPath()
  ctx.rect(0, 0, width, height)
  ctx.clip()
  draw(width, height)
  ctx.restore()
}
