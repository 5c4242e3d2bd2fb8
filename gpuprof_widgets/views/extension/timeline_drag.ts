import type {Point} from "./surface"
import type {TraceStore} from "./trace_store"
import {pan_to} from "./viewport"

type TimeScale = {time_at(x: number): number, view: {start: number, end: number, width: number}}

type Drag = {kind: "brush", fixed: number} | {kind: "pan", x: number, start: number}

const EDGE = 5

/** What dragging does: brush a range, move one of its edges, or move the view. */
export class TimelineDrag {
  private drag: Drag | null = null

  constructor(private readonly store: TraceStore, private readonly scale: TimeScale) {}

  /** Index of the brushed range's edge under a pixel; null where there is none. */
  edge_at(x: number): 0 | 1 | null {
    const range = this.store.window
    if (range == null) {
      return null
    }
    const {start, end, width} = this.scale.view
    const near = ([0, 1] as const).find((i) => Math.abs((range[i] - start) / (end - start) * width - x) <= EDGE)
    return near ?? null
  }

  start({x, event}: Point, pans: boolean): void {
    const edge = this.edge_at(x)
    if (event.shiftKey != pans) {
      this.drag = {kind: "pan", x, start: this.store.visible.start}
    } else if (edge != null && this.store.window != null) {
      this.drag = {kind: "brush", fixed: this.store.window[1 - edge]}
    } else {
      this.drag = {kind: "brush", fixed: this.scale.time_at(x)}
    }
  }

  move({x}: Point): void {
    const {drag} = this
    if (drag?.kind == "brush") {
      this.store.drag([drag.fixed, this.scale.time_at(x)])
    } else if (drag?.kind == "pan") {
      const {start, end, width} = this.scale.view
      pan_to(this.store, drag.start - (x - drag.x) / width * (end - start))
    }
  }

  end({x}: Point): void {
    if (this.drag?.kind == "brush") {
      this.store.brush([this.drag.fixed, this.scale.time_at(x)])
    }
    this.drag = null
  }

  cancel(): void {
    this.drag = null
    this.store.drag(null)
  }
}
