import type {Context2d} from "@bokehjs/core/util/canvas"

import {nearest_edge, tick_of_edge, type Edge} from "./engine"
import type {Mark} from "./ruler"
import {paint_ruler} from "./ruler_paint"
import type {Point} from "./surface"
import type {Drag} from "./time_plot"
import type {Box, View} from "./timeline_paint"
import type {TraceStore} from "./trace_store"
import type {TrackArea} from "./track_area"

/** Pixels within which the ends of a measurement snap to events. */
const SNAP = 8

/** Where a timeline shows times and events. */
type Scene = {
  tracks: TrackArea
  view: View
  /** The time at a pixel, ns. */
  time_at(x: number): number
  /** The rectangle of an event; null where its track is not shown. */
  box_of(row: number): Box | null
}

/** Measures between points of a timeline, which lie on the events near them. A drag measures from its start to its end. */
export class Measurement implements Drag {
  constructor(private readonly store: TraceStore, private readonly scene: Scene) {}

  start(point: Point): void {
    this.store.ruler.start()
    this.end(point)
  }

  move(point: Point): void {
    this.store.ruler.hover(this.mark_at(point))
  }

  end(point: Point): void {
    this.store.ruler.mark(this.mark_at(point))
  }

  cancel(): void {
    this.store.ruler.start()
  }

  /** Begins to measure, or ends it; an event gives a mark at its start or end. */
  toggle(row: number, side: Edge["side"]): void {
    const {ruler} = this.store
    if (row >= 0) {
      ruler.mark(this.mark_on({row, side}))
    } else {
      ruler.toggle()
    }
  }

  /** The point under the pointer, on the nearest start or end of an event of its track if one is near. */
  private mark_at({x, y}: Point): Mark {
    const {store: {data}, scene: {tracks, view: {start, end, width}}} = this
    const tick = data.tick(this.scene.time_at(x))
    const place = tracks.place_at(y)
    const edge = place == null ? null : nearest_edge(data, place.lane.track, place.depth, tick, data.tick((end - start) / width * SNAP))
    return edge == null ? {store: this.store, ns: data.ns(Math.round(tick)), edge} : this.mark_on(edge)
  }

  private mark_on(edge: Edge): Mark {
    const {store} = this
    return {store, ns: store.data.ns(tick_of_edge(store.data, edge)), edge}
  }

  paint(ctx: Context2d): void {
    const {store, scene: {view}} = this
    const {marks} = store.ruler
    paint_ruler(ctx, marks, marks.map((mark) => this.y_of(mark)), marks[0]?.store === store, view, store.theme.palette)
  }

  /** The height at which a mark lies on an event of this trace. */
  private y_of({store, edge}: Mark): number | null {
    const box = edge == null || store !== this.store ? null : this.scene.box_of(edge.row)
    return box == null ? null : box[1] + box[3] / 2
  }
}
