import type {BBox} from "@bokehjs/core/util/bbox"
import {RendererView} from "@bokehjs/models/renderers/renderer"

import {element} from "./element"
import {RANGE_BAND_CSS} from "./range_band"
import {is_plain} from "./report_keys"
import {listen_weakly} from "./weak_listener"

export type Point = {x: number, y: number, event: PointerEvent | MouseEvent}

/** The gestures on a drawing area; coordinates are CSS pixels from its top left corner. */
type Handlers = {
  hover(point: Point): void
  leave(): void
  click(point: Point): void
  double_click?(point: Point): void
  drag_start?(point: Point): void
  drag?(point: Point): void
  drag_end?(point: Point): void
  drag_cancel?(): void
  wheel?(event: WheelEvent, x: number): boolean
  key(event: KeyboardEvent): boolean
}

const DRAG_THRESHOLD = 4

/** A focusable element over a canvas that turns pointer, wheel and keys into gestures. */
export class Surface {
  readonly el = document.createElement("div")
  private pressed: Point | null = null
  private dragging = false
  private frame = 0

  constructor(private readonly handlers: Handlers, label: string) {
    const {el} = this
    el.className = "surface"
    el.tabIndex = 0
    el.setAttribute("role", "application")
    el.setAttribute("aria-label", label)
    el.style.cssText = "position:absolute;z-index:1;touch-action:pan-y;outline-offset:-2px;user-select:none"
    el.addEventListener("pointermove", (event) => this.move(event))
    el.addEventListener("pointerleave", () => this.leave())
    el.addEventListener("pointerdown", (event) => this.press(event))
    el.addEventListener("pointerup", (event) => this.release(event))
    el.addEventListener("pointercancel", () => this.cancel())
    el.addEventListener("dblclick", (event) => handlers.double_click?.(this.point(event)))
    el.addEventListener("wheel", (event) => this.wheel(event), {passive: false})
    el.addEventListener("keydown", (event) => this.key(event))
  }

  place({left, top, width, height}: BBox): void {
    const {style} = this.el
    style.left = `${left}px`
    style.top = `${top}px`
    style.width = `${width}px`
    style.height = `${height}px`
  }

  cursor(name: string): void {
    this.el.style.cursor = name
  }

  private point(event: PointerEvent | MouseEvent): Point {
    const {left, top} = this.el.getBoundingClientRect()
    return {x: event.clientX - left, y: event.clientY - top, event}
  }

  private move(event: PointerEvent): void {
    const point = this.point(event)
    cancelAnimationFrame(this.frame)
    this.frame = requestAnimationFrame(() => this.moved(point))
  }

  private moved(point: Point): void {
    const {pressed, handlers} = this
    if (pressed == null) {
      handlers.hover(point)
    } else if (this.dragging) {
      handlers.drag?.(point)
    } else if (Math.abs(point.x - pressed.x) >= DRAG_THRESHOLD) {
      this.dragging = true
      handlers.leave()
      handlers.drag_start?.(pressed)
      handlers.drag?.(point)
    }
  }

  private press(event: PointerEvent): void {
    if (event.button == 0) {
      this.pressed = this.point(event)
      this.el.setPointerCapture(event.pointerId)
      this.el.focus({preventScroll: true})
      event.stopPropagation()
    }
  }

  private release(event: PointerEvent): void {
    if (this.pressed == null) {
      return
    }
    cancelAnimationFrame(this.frame)
    const point = this.point(event)
    this.moved(point)
    if (this.dragging) {
      this.handlers.drag_end?.(point)
    } else {
      this.handlers.click(point)
    }
    this.pressed = null
    this.dragging = false
  }

  /** Gives up the drag that is going on; false where there is none. */
  cancel(): boolean {
    const was_dragging = this.dragging
    this.pressed = null
    this.dragging = false
    if (was_dragging) {
      this.handlers.drag_cancel?.()
    }
    return was_dragging
  }

  private leave(): void {
    cancelAnimationFrame(this.frame)
    if (this.pressed == null) {
      this.handlers.leave()
    }
  }

  private wheel(event: WheelEvent): void {
    const is_handled = this.handlers.wheel?.(event, this.point(event).x) ?? false
    // Never the browser's zoom: it would change the whole page under the pointer.
    if (is_handled || event.ctrlKey || event.metaKey) {
      event.preventDefault()
      event.stopPropagation()
    }
  }

  private key(event: KeyboardEvent): void {
    const cancelled = event.key == "Escape" && this.cancel()
    if (is_plain(event) && (cancelled || this.handlers.key(event))) {
      event.preventDefault()
      event.stopPropagation()
    }
  }
}

const PAUSE_MS = 250

/**
 * Decides whether a plain wheel scrolls the tracks. A page that is being scrolled goes on scrolling when the
 * timeline comes under the pointer, and it scrolls on when the tracks have reached their end.
 */
export class WheelLatch {
  private last = -Infinity
  private scrolls_tracks = false
  private readonly listening = listen_weakly(window, "wheel", this, (latch, event) => latch.note(event))

  remove(): void {
    this.listening.abort()
  }

  private note(event: Event): void {
    if (event.timeStamp - this.last > PAUSE_MS) {
      this.scrolls_tracks = false
    }
    this.last = event.timeStamp
  }

  scrolls(event: WheelEvent, scroll: number, end: number): boolean {
    const fresh = event.timeStamp - this.last > PAUSE_MS
    const has_room = event.deltaY < 0 ? scroll > 0 : scroll < end
    if (fresh) {
      this.scrolls_tracks = has_room
    }
    this.last = event.timeStamp
    return this.scrolls_tracks && has_room
  }
}

/** A renderer with a surface over the figure's frame. */
export abstract class SurfaceView extends RendererView {
  protected surface: Surface
  protected readonly css: string = ""
  private readonly style_el = element("style")

  override remove(): void {
    this.surface.el.remove()
    this.style_el.remove()
    super.remove()
  }

  /** Puts the surface onto the figure's frame, and the elements next to it once. */
  protected mount(...elements: HTMLElement[]): void {
    const {canvas_view, frame} = this.plot_view
    if (!this.surface.el.isConnected) {
      this.style_el.textContent = SURFACE_CSS + RANGE_BAND_CSS + this.css
      canvas_view.shadow_el.append(this.style_el, this.surface.el, ...elements)
      canvas_view.events_el.tabIndex = -1
    }
    this.surface.place(frame.bbox)
  }
}

const SURFACE_CSS = `
.surface:focus { outline: none; }
.surface:focus-visible { outline: 2px solid var(--gp-accent, #005ea2); }
`
