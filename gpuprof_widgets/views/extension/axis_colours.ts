import type {Plot} from "@bokehjs/models/plots/plot"
import {Axis} from "@bokehjs/models/axes/axis"

import {css} from "./colour"
import type {Palette} from "./theme"

/** Bokeh's axes in the page's colours. */
export function recolour_axes(plot: Plot, palette: Palette): void {
  for (const axis of [...plot.above, ...plot.below]) {
    if (axis instanceof Axis) {
      axis.major_label_text_color = css(palette.muted)
      axis.axis_line_color = css(palette.line)
      axis.major_tick_line_color = css(palette.line)
    }
  }
}
