import type * as p from "@bokehjs/core/properties"
import {Signal, Signal0} from "@bokehjs/core/signaling"
import {Renderer} from "@bokehjs/models/renderers/renderer"

import type {State, TrackOrder} from "./engine"
import type {Part} from "./journal"
import {TimelineView} from "./timeline_view"
import {TraceStore} from "./trace_store"
import {first_order, track_depths} from "./tracks"

type TimelineProps = {
  store: p.Property<TraceStore>
  axis_height: p.Property<number>
  max_height: p.Property<number>
  compact: p.Property<boolean>
  folds_to_fit: p.Property<boolean>
  drag_pans: p.Property<boolean>
}

export interface Timeline extends p.AttrsOf<TimelineProps> {}

/** A track that was looked for; whether the page scrolls to it, and whether its name takes the focus. */
export type Sought = {track: number, on_screen: boolean, takes_focus: boolean}

/** The tracks of a trace over time, as the reader has arranged them; drawn on an ordinary Bokeh figure. */
export class Timeline extends Renderer implements Part {
  declare properties: Renderer.Props & TimelineProps

  static override __module__ = "gpuprof_widgets"

  /** Number of nesting levels of every track. */
  depths: number[]
  /** The tracks as the reader has arranged them. */
  order: TrackOrder
  private first_order: TrackOrder
  order_changed: Signal0<this>
  sought: Signal<Sought | null, this>
  /** Somebody wants to find a track. */
  find_called: Signal0<this>
  private prepared: Promise<void> | null = null

  static {
    this.prototype.default_view = TimelineView
    this.define<TimelineProps>(({Bool, Float, Ref}) => ({
      store: [Ref(TraceStore)],
      axis_height: [Float, 24],
      max_height: [Float, 500],
      compact: [Bool, false],
      folds_to_fit: [Bool, false],
      drag_pans: [Bool, false],
    }))
  }

  override initialize(): void {
    super.initialize()
    this.order_changed = new Signal0(this, "order_changed")
    this.sought = new Signal(this, "sought")
    this.find_called = new Signal0(this, "find_called")
  }

  override connect_signals(): void {
    super.connect_signals()
    this.connect(this.store.was_reset, () => this.reorder(this.first_order))
  }

  /** Puts the tracks into their first order once the trace is there. */
  prepare(): Promise<void> {
    return this.prepared ??= this.store.ready.then((data) => {
      this.depths = track_depths(data)
      this.order = this.first_order = first_order(data, this.depths, this.compact)
      this.store.journal.join(this)
    })
  }

  reorder(order: TrackOrder): void {
    if (order !== this.order) {
      this.order = order
      this.order_changed.emit()
      this.store.journal.note()
    }
  }

  remember(): State {
    const {order} = this
    return {marks: [order], restore: () => this.reorder(order)}
  }

  /** Escape leaves the tracks as they are. */
  clear(): boolean {
    return false
  }
}
