import type {HasProps} from "@bokehjs/core/has_props"
import {Signal0} from "@bokehjs/core/signaling"

import {Gestures, History, type State} from "./engine"
import {listen_weakly} from "./weak_listener"

/** What Escape takes away, one after the other. */
const LAYERS = ["selection", "range", "zoom"] as const
export type Layer = typeof LAYERS[number]

/** A part of the report with a state of its own. */
export type Part = {
  remember(): State
  /** Takes a layer away; returns whether there was any. */
  clear(layer: Layer): boolean
}

/** Goes back to the states of the report before the last changes of its selection, range and zoom. */
export class Journal {
  private readonly parts: Part[]
  private readonly gestures = new Gestures()
  private history: History | null = null
  private is_returning = false
  /** Whether there is a step may have changed. */
  readonly changed: Signal0<HasProps>

  constructor(first: Part & HasProps) {
    this.parts = [first]
    this.changed = new Signal0(first, "journal")
  }

  /** Begins with the present state, once. */
  start(): void {
    if (this.history == null) {
      this.history = new History(this.state)
      for (const type of GESTURES) {
        listen_weakly(window, type, this.gestures, note_gesture, true)
      }
    }
  }

  /** Adds a part, whose state is restored after that of the earlier ones. */
  join(part: Part): void {
    this.parts.push(part)
    this.history?.settle(this.state)
  }

  private get state(): State {
    const states = this.parts.map((part) => part.remember())
    return {marks: states.flatMap(({marks}) => marks), restore: () => states.forEach(({restore}) => restore())}
  }

  /** Takes note of a change. */
  note(): void {
    if (!this.is_returning) {
      this.history?.note(this.state, this.gestures.count)
      this.changed.emit()
    }
  }

  /** Takes the present state as it is, without a step. */
  settle(): void {
    if (!this.is_returning) {
      this.history?.settle(this.state)
    }
  }

  /** Whether there is a step back. */
  get has_step(): boolean {
    return this.history?.has_step ?? false
  }

  /** Goes back by one step; returns whether there was any. */
  back(): boolean {
    const state = this.history?.back(this.gestures.count)
    if (state != null) {
      this.is_returning = true
      try {
        state.restore()
      } finally {
        this.is_returning = false
      }
      this.history?.settle(this.state)
      this.changed.emit()
    }
    return state != null
  }

  /** Takes away the first of the layers that is there. */
  clear_next(): boolean {
    return LAYERS.some((layer) => this.parts.filter((part) => part.clear(layer)).length > 0)
  }
}

const GESTURES = ["keydown", "pointerdown", "wheel"]

function note_gesture(gestures: Gestures, event: Event): void {
  gestures.note(event)
}

/** The keys that undo, for screen readers. */
export const UNDO_KEYS = "Escape clears selection, range and zoom in turn. Backspace goes back."
