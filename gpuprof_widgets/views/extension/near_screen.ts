/**
 * Starts reports that come near the screen, the nearest first and one at a time, so that the browser answers in between.
 * Until then their static outputs stand in the page. What is on the screen stays where it is.
 */

type Start = () => Promise<void>

/** Pixels between a cell and the screen. */
const MARGIN = 1500
/** Frames until a report has its height: tables fit their columns to the room that they find. */
const FRAMES = 3
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
    const place = document.hidden ? null : take_nearest()
    await (place == null ? new Promise((resolve) => setTimeout(resolve, LOOK_MS)) : start_at(place))
  }
  is_looking = false
}

async function start_at(place: Element): Promise<void> {
  const let_go = hold_what_follows(cell_of(place))
  await starts.get(place)!().catch(console.error) // the others start
  for (let frame = 0; frame < FRAMES; frame++) {
    await new Promise(requestAnimationFrame)
  }
  let_go()
}

/**
 * Keeps what follows a cell where it is on the screen, while the cell changes its height above; returns what ends this.
 * Browsers do so by themselves (overflow-anchor), but not in the notebooks of JupyterLab.
 */
function hold_what_follows(cell: Element): () => void {
  const scroller = cell.closest<HTMLElement>(".jp-WindowedPanel-outer")
  if (scroller == null) {
    return () => undefined
  }
  const {overflowAnchor} = scroller.style
  scroller.style.overflowAnchor = "none"
  let {height} = cell.getBoundingClientRect()
  const observer = new ResizeObserver(() => {
    const {top, bottom, height: now} = cell.getBoundingClientRect()
    if (now == 0) { // hidden for a while
      return
    }
    if (top < 0 && bottom - (now - height) < window.innerHeight) {
      scroller.scrollTop += now - height
    }
    height = now
  })
  observer.observe(cell)
  return () => {
    observer.disconnect()
    scroller.style.overflowAnchor = overflowAnchor
  }
}

function cell_of(place: Element): Element {
  return place.closest(".jp-Cell") ?? document.body
}

/** The place nearest to the screen, which no longer waits. */
function take_nearest(): Element | null {
  const places = waiting.map((held) => held.deref()).filter((place) => place != null)
  const distances = new Map(places.map((place) => [place, distance(place)]))
  const [nearest] = [...distances.keys()].sort((a, b) => distances.get(a)! - distances.get(b)!)
  const is_near = nearest != null && distances.get(nearest)! <= MARGIN
  waiting = places.filter((place) => !is_near || place !== nearest).map((place) => new WeakRef(place))
  return is_near ? nearest : null
}

/** Pixels between the cell of an element, tables above it included, and the screen; infinite where it is not laid out. */
function distance(el: Element): number {
  if (!el.checkVisibility({contentVisibilityAuto: true})) {
    return Infinity
  }
  const {top, bottom} = cell_of(el).getBoundingClientRect()
  return Math.max(0, top - window.innerHeight, -bottom)
}
