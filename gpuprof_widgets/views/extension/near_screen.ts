/**
 * Starts reports that come near the screen, the nearest first and one at a time, so that the browser answers in between.
 * Until then their static outputs stand in the page.
 */

type Start = () => Promise<void>

/** Pixels between a place and the screen: the tables that stand for a report above its place are about as high. */
const MARGIN = 1500
const PAUSE_MS = 20
/** After this time it looks for what came near. An IntersectionObserver has no margin where a front end clips its notebook. */
const LOOK_MS = 200

/** A start is held by the place that it is for: a report that leaves the page before is let go. */
const starts = new WeakMap<Element, Start>()
let waiting: WeakRef<Element>[] = []
let is_looking = false

/** A place that is hidden, or not in the page yet, waits until it is shown. */
export function start_near_screen(place: Element, start: Start): void {
  starts.set(place, start)
  waiting.push(new WeakRef(place))
  void start_waiting()
}

async function start_waiting(): Promise<void> {
  if (is_looking) {
    return
  }
  is_looking = true
  await pause(0) // the other reports of the page come in
  while (waiting.length > 0) {
    const start = document.hidden ? null : take_nearest()
    await start?.()
    await pause(start == null ? LOOK_MS : PAUSE_MS)
  }
  is_looking = false
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms))
}

/** The start of the place nearest to the screen, which no longer waits. */
function take_nearest(): Start | null {
  const places = new Set(waiting.map((held) => held.deref()).filter((place) => place != null))
  const [nearest] = [...places].map((place) => ({place, distance: distance(place)})).sort((a, b) => a.distance - b.distance)
  const is_near = nearest != null && nearest.distance <= MARGIN
  waiting = waiting.filter((held) => held.deref() != null && !(is_near && held.deref() === nearest.place))
  return is_near ? starts.get(nearest.place)! : null
}

/** Pixels between an element and the screen; infinite where it is not laid out. */
function distance(el: Element): number {
  if (!el.checkVisibility({contentVisibilityAuto: true})) {
    return Infinity
  }
  const {top, bottom} = el.getBoundingClientRect()
  return Math.max(0, top - window.innerHeight, -bottom)
}
