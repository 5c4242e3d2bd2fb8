import type * as p from "@bokehjs/core/properties"
import {Signal0} from "@bokehjs/core/signaling"
import {Model} from "@bokehjs/model"

import type {State} from "./engine"
import {Journal, type Layer, type Part} from "./journal"
import {TraceStore} from "./trace_store"

type StoreGroupProps = {
  stores: p.Property<TraceStore[]>
  brushes_all: p.Property<boolean>
}

export interface StoreGroup extends p.AttrsOf<StoreGroupProps> {}

/** Several traces on one time axis: a brush or reset of one is one of all; there is one selection at a time. */
export class StoreGroup extends Model implements Part {
  static override __module__ = "gpuprof_widgets"

  /** The store in which the last selection was made. */
  chosen: TraceStore | null = null
  selection_changed: Signal0<this>
  /** Whether a change is being passed on to the other stores: they do not pass it on again. */
  private spreading = false

  static {
    this.define<StoreGroupProps>(({Bool, List, Ref}) => ({
      stores: [List(Ref(TraceStore)), []],
      brushes_all: [Bool, true],
    }))
  }

  override initialize(): void {
    super.initialize()
    this.selection_changed = new Signal0(this, "selection_changed")
    const linked = {stores: this.stores, choose: (selections: TraceStore["selection"][]) => this.choose(selections)}
    const journal = new Journal(this)
    for (const store of this.stores) {
      store.journal = journal
      store.linked = linked
    }
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

  /** Makes one selection per trace, null for none. */
  choose(selections: (TraceStore["selection"])[]): void {
    this.spread(null, (store) => store.choose(selections[this.stores.indexOf(store)]))
    this.chosen = null
    this.selection_changed.emit()
  }

  remember(): State {
    const {chosen} = this
    const states = this.stores.map((store) => ({store, ...store.remember()}))
    return {
      marks: states.flatMap(({marks}) => marks),
      restore: () => {
        // Each store has a state of its own: none is passed on to the others.
        this.spread(null, (store) => states.find((state) => state.store === store)?.restore())
        this.chosen = chosen
        this.selection_changed.emit()
      },
    }
  }

  clear(layer: Layer): boolean {
    return this.stores.filter((store) => store.clear(layer)).length > 0
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

  private spread(from: TraceStore | null, change: (store: TraceStore) => void): void {
    const others = this.stores.filter((store) => store !== from && store.data != null)
    if (!this.spreading) {
      this.spreading = true
      try {
        others.forEach(change)
      } finally {
        this.spreading = false
      }
    }
  }
}
