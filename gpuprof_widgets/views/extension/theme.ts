import type {HasProps} from "@bokehjs/core/has_props"
import {Signal0} from "@bokehjs/core/signaling"

import {contrast, css, luminance, mix, parse_colour, VISIBLE, with_contrast, type RGB} from "./colour"

/** The colours of one page, resolved to numbers so that canvas and DOM agree. */
export type Palette = {
  dark: boolean
  background: RGB
  foreground: RGB
  muted: RGB
  line: RGB
  /** borders of what can be used, and of pale fills */
  edge: RGB
  band: RGB
  accent: RGB
}

const LIGHT = {foreground: [33, 33, 33] as RGB, accent: [0, 94, 162] as RGB}
const DARK = {foreground: [236, 236, 236] as RGB, accent: [102, 186, 240] as RGB}

const DEFAULT_PALETTE: Palette = palette_on([255, 255, 255], LIGHT.foreground)

function palette_on(background: RGB, foreground: RGB): Palette {
  const dark = luminance(background) < 0.18
  const band = mix(foreground, background, 0.94)
  return {
    dark,
    background,
    foreground,
    muted: mix(foreground, background, 0.25),
    line: mix(foreground, background, 0.78),
    edge: with_contrast(mix(foreground, background, 0.7), foreground, band, VISIBLE),
    band,
    accent: dark ? DARK.accent : LIGHT.accent,
  }
}

function parent_element(node: Element): Element | null {
  if (node.parentElement != null) {
    return node.parentElement
  }
  const root = node.getRootNode()
  return root instanceof ShadowRoot ? root.host : null
}

/** The first opaque background behind an element; the page's canvas colour where there is none. */
function background_behind(el: Element): RGB {
  for (let node: Element | null = el; node != null; node = parent_element(node)) {
    const {rgb, alpha} = parse_colour(getComputedStyle(node).backgroundColor)
    if (alpha > 0.5) {
      return rgb
    }
  }
  return probe(el, "backgroundColor", "Canvas").rgb
}

function probe(el: Element, property: "color" | "backgroundColor", value: string): {rgb: RGB, alpha: number} {
  const span = document.createElement("span")
  span.style[property] = value
  el.append(span)
  const colour = parse_colour(getComputedStyle(span)[property])
  span.remove()
  return colour
}

/** Returns the palette for an element of the page, with the page's own text colour where it is legible. */
function resolve_palette(el: Element): Palette {
  const background = background_behind(el)
  const fallback = luminance(background) < 0.18 ? DARK.foreground : LIGHT.foreground
  const theirs = probe(el, "color", `var(--jp-ui-font-color1, var(--vscode-editor-foreground, ${css(fallback)}))`)
  const foreground = mix(theirs.rgb, background, 1 - theirs.alpha)
  return palette_on(background, contrast(foreground, background) >= 7 ? foreground : fallback)
}

const WATCHED = ["class", "style", "data-theme", "data-jp-theme-light", "data-jp-theme-name", "data-vscode-theme-kind"]

/** Follows the page's theme and publishes it as CSS variables on the report's root. */
export class Theme {
  palette: Palette = DEFAULT_PALETTE
  readonly changed: Signal0<HasProps>
  private root: HTMLElement | null = null
  private readonly observer: MutationObserver
  private readonly media = window.matchMedia("(prefers-color-scheme: dark)")
  private readonly refresh_later = (): void => void setTimeout(() => this.refresh(), 60)

  constructor(owner: HasProps) {
    this.changed = new Signal0(owner, "theme")
    this.observer = new MutationObserver(this.refresh_later)
  }

  attach(root: HTMLElement): void {
    if (this.root === root) {
      return
    }
    this.detach()
    this.root = root
    for (const el of [document.documentElement, document.body]) {
      this.observer.observe(el, {attributes: true, attributeFilter: WATCHED})
    }
    this.media.addEventListener("change", this.refresh_later)
    this.refresh()
  }

  detach(): void {
    this.observer.disconnect()
    this.media.removeEventListener("change", this.refresh_later)
    this.root = null
  }

  refresh(): void {
    const {root} = this
    if (root == null || !root.isConnected) {
      return
    }
    // Outside of the report: within it the colour scheme is the one that was resolved last.
    this.palette = resolve_palette(parent_element(root) ?? document.body)
    for (const name of ["background", "foreground", "muted", "line", "edge", "band", "accent"] as const) {
      root.style.setProperty(`--gp-${name}`, css(this.palette[name]))
    }
    root.style.colorScheme = this.palette.dark ? "dark" : "light"
    this.changed.emit()
  }
}
