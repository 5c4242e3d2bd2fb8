import type * as p from "@bokehjs/core/properties"
import {Signal0} from "@bokehjs/core/signaling"
import {Model} from "@bokehjs/model"

import {TraceStore} from "./trace_store"

/** Several traces on one time axis: what is brushed or reset in one is so in all; one selection at a time. */
export class StoreGroup extends Model {
  declare properties: StoreGroup.Props

  static override __module__ = "gpuprof_widgets.views.models"

  /** Where something was selected last. */
  chosen: TraceStore | null = null
  selection_changed: Signal0<this>
  /** What one store was told is being told to the others: they need not tell it again. */
  private spreading = false

  constructor(attrs?: Partial<StoreGroup.Attrs>) {
    super(attrs)
  }

  static {
    this.define<StoreGroup.Props>(({Bool, List, Ref}) => ({
      stores: [List(Ref(TraceStore)), []],
      brushes_all: [Bool, true],
    }))
  }

  override initialize(): void {
    super.initialize()
    this.selection_changed = new Signal0(this, "selection_changed")
  }

  override connect_signals(): void {
    super.connect_signals()
    for (const store of this.stores) {
      this.connect(store.properties.window.change, () => this.brushed(store))
      this.connect(store.draft_changed, () => this.dragged(store))
      this.connect(store.selection_changed, () => this.selected(store))
      this.connect(store.was_reset, () => this.spread(store, (other) => other.reset()))
    }
  }

  get ready(): Promise<unknown> {
    return Promise.all(this.stores.map(({ready}) => ready))
  }

  /** Selects in each trace what is meant there; null in those where nothing is. */
  choose(selections: (TraceStore["selection"])[]): void {
    this.spread(null, (store) => store.choose(selections[this.stores.indexOf(store)]))
    this.chosen = null
    this.selection_changed.emit()
  }

  private brushed(store: TraceStore): void {
    if (this.brushes_all) {
      this.spread(store, (other) => other.brush(store.window))
    }
  }

  private dragged(store: TraceStore): void {
    if (this.brushes_all) {
      this.spread(store, (other) => other.drag(store.draft))
    }
  }

  private selected(store: TraceStore): void {
    if (!this.spreading) {
      this.chosen = store.selection == null ? null : store
      this.spread(store, (other) => other.choose(null))
      this.selection_changed.emit()
    }
  }

  private spread(from: TraceStore | null, tell: (store: TraceStore) => void): void {
    const others = this.stores.filter((store) => store !== from && store.data != null)
    if (!this.spreading) {
      this.spreading = true
      try {
        others.forEach(tell)
      } finally {
        this.spreading = false
      }
    }
  }
}

export namespace StoreGroup {
  export type Attrs = p.AttrsOf<Props>
  export type Props = Model.Props & {
    stores: p.Property<TraceStore[]>
    brushes_all: p.Property<boolean>
  }
}

export interface StoreGroup extends StoreGroup.Attrs {}
