/** An element's parent, also across the border of a shadow tree. */
export function parent_element(node: Element): Element | null {
  if (node.parentElement != null) {
    return node.parentElement
  }
  const root = node.getRootNode()
  return root instanceof ShadowRoot ? root.host : null
}

/** The elements around an element that show a part of it only: in JupyterLab the notebook scrolls, not the window. */
function* clipping_elements(el: Element): Generator<Element> {
  for (let at = parent_element(el); at != null && at !== document.body; at = parent_element(at)) {
    if (getComputedStyle(at).overflowY != "visible") {
      yield at
    }
  }
}

/** Returns top and bottom (pixels of the window) of the room in which an element can be seen now. */
export function scroll_port(el: Element): {top: number, bottom: number} {
  let [top, bottom] = [0, window.innerHeight]
  for (const at of clipping_elements(el)) {
    const box = at.getBoundingClientRect()
    top = Math.max(top, box.top)
    bottom = Math.min(bottom, box.bottom)
  }
  return {top, bottom}
}

/** Heights in pixels from the top of an element. */
type Stretch = {top: number, bottom: number}

/** Scrolls the page until a stretch of an element is in view: with all that stands `around` it if that has room, else in the middle. */
export function bring_into_view(el: HTMLElement, stretch: Stretch, around: Stretch): void {
  const room = Math.min(window.innerHeight, ...[...clipping_elements(el)].map(({clientHeight}) => clientHeight))
  const fits = around.bottom - around.top <= room
  const {top, bottom} = fits ? around : stretch
  const anchor = document.createElement("div")
  anchor.style.cssText = `position:absolute;visibility:hidden;top:${top}px;height:${bottom - top}px;width:1px`
  el.append(anchor)
  scroll_to(anchor, fits ? "nearest" : "center")
  anchor.remove()
}

/** Brings an element onto the screen, and the focus to it. */
export function go_to(el: HTMLElement, block: ScrollLogicalPosition): void {
  scroll_to(el, block)
  el.focus({preventScroll: true})
}

function scroll_to(el: HTMLElement, block: ScrollLogicalPosition): void {
  const is_still = window.matchMedia("(prefers-reduced-motion: reduce)").matches
  el.scrollIntoView({block, inline: "nearest", behavior: is_still ? "instant" : "smooth"})
}
