/** What a page goes back to, and forward again: the states before its last changes, and the gestures that made them. */

/** A state of a page; `marks` of equal states are equal. */
export type State = {marks: unknown[], restore: () => void}

function same_state(a: State, b: State): boolean {
  return a.marks.length == b.marks.length && a.marks.every((mark, i) => Object.is(mark, b.marks[i]))
}

const MOST_STEPS = 100

/** The states before the last changes, one for each gesture that changed anything, and those that were gone back from. */
export class History {
  private readonly past: State[] = []
  private readonly ahead: State[] = []
  private last_gesture: number | null = null

  constructor(private present: State) {}

  /** Whether there is a step back and one forward. */
  get steps(): {back: boolean, forward: boolean} {
    const leads_on = (states: State[]): boolean => states.some((state) => !same_state(state, this.present))
    return {back: leads_on(this.past), forward: leads_on(this.ahead)}
  }

  /** Takes note of the state during or after a gesture. A new gesture that changes anything drops what was ahead. */
  note(state: State, gesture: number): void {
    if (!same_state(state, this.present) && gesture != this.last_gesture) {
      this.past.push(this.present)
      this.past.splice(0, this.past.length - MOST_STEPS)
      this.ahead.length = 0
      this.last_gesture = gesture
    }
    this.present = state
  }

  /** Returns the state before the last gesture that left a change; null without any. What follows from this gesture is no step. */
  back(gesture: number): State | null {
    return this.step(this.past, this.ahead, gesture)
  }

  /** Returns the state that was last gone back from; null without any. */
  forward(gesture: number): State | null {
    return this.step(this.ahead, this.past, gesture)
  }

  private step(from: State[], to: State[], gesture: number): State | null {
    let state = from.pop()
    while (state != null && same_state(state, this.present)) {
      state = from.pop()
    }
    if (state == null) {
      return null
    }
    to.push(this.present)
    this.last_gesture = gesture
    return state
  }

  /** Takes a state as the present one, without a step. */
  settle(state: State): void {
    this.present = state
  }
}

const PAUSE_MS = 250

/** Counts gestures: a press of a key or button until the next one, or turns of the wheel without a pause. */
export class Gestures {
  count = 0
  private last_wheel = -Infinity

  note({type, timeStamp, repeat = false}: {type: string, timeStamp: number, repeat?: boolean}): void {
    const is_wheel = type == "wheel"
    const goes_on = is_wheel ? timeStamp - this.last_wheel <= PAUSE_MS : repeat
    this.count += goes_on ? 0 : 1
    this.last_wheel = is_wheel ? timeStamp : goes_on ? this.last_wheel : -Infinity
  }
}
