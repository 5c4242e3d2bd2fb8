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

  constructor(first: Part) {
    this.parts = [first]
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
    }
  }

  /** Goes back by one step; returns whether there was any. */
  back(): boolean {
    const state = this.history?.back(this.gestures.count) ?? null
    if (state != null) {
      this.is_returning = true
      try {
        state.restore()
      } finally {
        this.is_returning = false
      }
      this.history?.settle(this.state)
    }
    return state != null
  }

  /** Takes away the selection; where there is none the range; where there is none the zoom. */
  clear_next(): boolean {
    return LAYERS.some((layer) => this.parts.filter((part) => part.clear(layer)).length > 0)
  }
}

const GESTURES = ["keydown", "pointerdown", "wheel"]

function note_gesture(gestures: Gestures, event: Event): void {
  gestures.note(event)
}

/** The keys that undo, for screen readers. */
export const UNDO_KEYS = "Escape clears selection, range and zoom in turn, Backspace goes back."

/** Handles the keys that undo; returns false for other keys, and where there is nothing to undo. */
export function undo_key(journal: Journal, key: string): boolean {
  switch (key) {
    case "Escape": return journal.clear_next()
    case "Backspace": return journal.back()
    default: return false
  }
}
