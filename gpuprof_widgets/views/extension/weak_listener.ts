import {PlotView} from "@bokehjs/models/plots/plot"

/**
 * Listens as long as the owner exists, without keeping it: a front end takes a report out of the page and tells nobody.
 * `call` is a function defined apart from the owner: a closure keeps all that the closures beside it use.
 */
export function listen_weakly<Owner extends WeakKey>(
  target: EventTarget, type: string, owner: Owner, call: (owner: Owner, event: Event) => void, capture: boolean = false,
): AbortController {
  const held = new WeakRef(owner)
  const listening = new AbortController()
  const listener = (event: Event): void => {
    const owner = held.deref()
    if (owner == null) {
      listening.abort()
    } else {
      call(owner, event)
    }
  }
  target.addEventListener(type, listener, {passive: true, capture, signal: listening.signal})
  return listening
}

/** What Bokeh's plots do when the viewport is resized. */
const resizes = new WeakMap<PlotView, EventListener>()

function resize(view: PlotView, event: Event): void {
  resizes.get(view)?.(event)
}

/** Bokeh's plots listen to the viewport for good, removed or not; here they do so as long as they exist. */
function connect_weakly(view: PlotView, viewport: VisualViewport, connect: () => void): void {
  viewport.addEventListener = (_type: string, listener: EventListener) => void resizes.set(view, listener)
  try {
    connect.call(view)
  } finally {
    Reflect.deleteProperty(viewport, "addEventListener")
  }
  listen_weakly(viewport, "resize", view, resize)
}

const connect = Reflect.get(PlotView.prototype, "connect_signals")
PlotView.prototype.connect_signals = function(): void {
  const {visualViewport} = window
  if (visualViewport == null) {
    connect.call(this)
  } else {
    connect_weakly(this, visualViewport, connect)
  }
}
