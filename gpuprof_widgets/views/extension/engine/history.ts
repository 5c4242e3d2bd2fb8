/** What a page goes back to: the states before its last changes, and the gestures that made them. */

/** A state of a page; `marks` of equal states are equal. */
export type State = {marks: unknown[], restore: () => void}

function same_state(a: State, b: State): boolean {
  return a.marks.length == b.marks.length && a.marks.every((mark, i) => Object.is(mark, b.marks[i]))
}

const MOST_STEPS = 100

/** The states before the last changes, one for each gesture that changed anything. */
export class History {
  private readonly past: State[] = []
  private last_gesture: number | null = null

  constructor(private present: State) {}

  /** Whether there is a step back. */
  get has_step(): boolean {
    return this.past.some((state) => !same_state(state, this.present))
  }

  /** Takes note of the state during or after a gesture. */
  note(state: State, gesture: number): void {
    if (!same_state(state, this.present) && gesture != this.last_gesture) {
      this.past.push(this.present)
      this.past.splice(0, this.past.length - MOST_STEPS)
      this.last_gesture = gesture
    }
    this.present = state
  }

  /** Returns the state before the last gesture that left a change; null without any. What follows from this gesture is no step. */
  back(gesture: number): State | null {
    let state = this.past.pop()
    while (state != null && same_state(state, this.present)) {
      state = this.past.pop()
    }
    this.last_gesture = state == null ? this.last_gesture : gesture
    return state ?? null
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
