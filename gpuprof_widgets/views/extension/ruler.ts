import type {HasProps} from "@bokehjs/core/has_props"
import {Signal0} from "@bokehjs/core/signaling"

import type {Edge, State} from "./engine"
import type {Journal, Layer, Part} from "./journal"
import type {TraceStore} from "./trace_store"

/** A point in time (ns) of one of the traces, and the start or end of an event on which it lies; null for none. */
export type Mark = {store: TraceStore, ns: number, edge: Edge | null}

/** `is_on`: whether the next points are marked. */
type Marks = {is_on: boolean, marks: readonly Mark[]}

const NOTHING: Marks = {is_on: false, marks: []}

/** Measures the time between two points; several traces on one time axis share one. */
export class Ruler implements Part {
  readonly changed: Signal0<HasProps>
  /** The point under the pointer, where the next mark would be. */
  private hovered: Mark | null = null
  private state = NOTHING

  constructor(owner: HasProps, private readonly journal: Journal) {
    this.changed = new Signal0(owner, "ruler")
    journal.join(this)
  }

  get is_on(): boolean {
    return this.state.is_on
  }

  /** What is marked, with the point under the pointer as long as a mark is missing; in order of time. */
  get marks(): Mark[] {
    const {is_on, marks} = this.state
    return [...marks, ...is_on && this.hovered != null ? [this.hovered] : []].sort((a, b) => a.ns - b.ns)
  }

  /** Both marks in order of time; null before both are set. */
  get measured(): [Mark, Mark] | null {
    return this.state.marks.length == 2 ? this.marks as [Mark, Mark] : null
  }

  private set(state: Marks): void {
    this.state = state
    this.hovered = null
    this.changed.emit()
    this.journal.note()
  }

  /** Begins a new measurement. */
  start(): void {
    this.set({is_on: true, marks: []})
  }

  toggle(): void {
    if (this.is_on) {
      this.stop()
    } else {
      this.start()
    }
  }

  /** Sets the first mark, or the second where the first is set. */
  mark(mark: Mark): void {
    const {is_on, marks} = this.state
    const is_second = is_on && marks.length == 1
    this.set({is_on: !is_second, marks: is_second ? [...marks, mark] : [mark]})
  }

  hover(mark: Mark | null): void {
    this.hovered = mark
    this.changed.emit()
  }

  /** Takes all away; returns whether there was anything. */
  stop(): boolean {
    const is_there = this.state !== NOTHING
    if (is_there) {
      this.set(NOTHING)
    }
    return is_there
  }

  /** Makes what was measured the range. */
  brush(): void {
    const {measured} = this
    if (measured != null) {
      const [{store, ns: start}, {ns: end}] = measured
      store.brush([start, end])
      this.stop()
    }
  }

  remember(): State {
    const {state} = this
    return {marks: [state], restore: () => this.set(state)}
  }

  clear(layer: Layer): boolean {
    return layer == "measure" && this.stop()
  }
}
