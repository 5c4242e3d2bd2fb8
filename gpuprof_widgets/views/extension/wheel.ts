const PAUSE_MS = 250

/**
 * Decides whether a plain wheel scrolls the tracks. A page that is being scrolled goes on scrolling when the
 * timeline comes under the pointer, and it scrolls on when the tracks have reached their end.
 */
export class WheelLatch {
  private last = -Infinity
  private ours = false
  private readonly note = (event: WheelEvent): void => {
    if (event.timeStamp - this.last > PAUSE_MS) {
      this.ours = false
    }
    this.last = event.timeStamp
  }

  constructor() {
    window.addEventListener("wheel", this.note, {passive: true})
  }

  remove(): void {
    window.removeEventListener("wheel", this.note)
  }

  scrolls(event: WheelEvent, scroll: number, end: number): boolean {
    const fresh = event.timeStamp - this.last > PAUSE_MS
    const has_room = event.deltaY < 0 ? scroll > 0 : scroll < end
    if (fresh) {
      this.ours = has_room
    }
    this.last = event.timeStamp
    return this.ours && has_room
  }
}
