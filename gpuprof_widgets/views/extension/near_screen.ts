/**
 * Starts reports that come near the screen, the nearest first and one at a time, so that the browser answers in between.
 * Until then their static outputs stand in the page.
 */

type Start = () => Promise<void>

/** Pixels between a cell and the screen. */
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
  while (waiting.length > 0) {
    const start = document.hidden ? null : take_nearest()
    try {
      await start?.()
    } catch (error) { // of one report: the others start
      console.error(error)
    }
    await new Promise((resolve) => setTimeout(resolve, start == null ? LOOK_MS : PAUSE_MS))
  }
  is_looking = false
}

/** The start of the place nearest to the screen, which no longer waits. */
function take_nearest(): Start | null {
  const places = waiting.map((held) => held.deref()).filter((place) => place != null)
  const distances = new Map(places.map((place) => [place, distance(place)]))
  const [nearest] = [...distances.keys()].sort((a, b) => distances.get(a)! - distances.get(b)!)
  const is_near = nearest != null && distances.get(nearest)! <= MARGIN
  waiting = places.filter((place) => !is_near || place !== nearest).map((place) => new WeakRef(place))
  return is_near ? starts.get(nearest)! : null
}

/** Pixels between the cell of an element, tables above it included, and the screen; infinite where it is not laid out. */
function distance(el: Element): number {
  if (!el.checkVisibility({contentVisibilityAuto: true})) {
    return Infinity
  }
  const {top, bottom} = (el.closest(".jp-Cell") ?? document.body).getBoundingClientRect()
  return Math.max(0, top - window.innerHeight, -bottom)
}
