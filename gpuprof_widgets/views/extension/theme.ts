import type {HasProps} from "@bokehjs/core/has_props"
import {Signal0} from "@bokehjs/core/signaling"

import {contrast, css, luminance, mix, parse_colour, VISIBLE, with_contrast, type RGB} from "./colour"
import {parent_element} from "./scroll_port"

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

/** The first opaque background behind an element; without one what shows through the page: VS Code's editor, or the canvas. */
function background_behind(el: Element): RGB {
  for (let node: Element | null = el; node != null; node = parent_element(node)) {
    const {rgb, alpha} = parse_colour(getComputedStyle(node).backgroundColor)
    if (alpha > 0.5) {
      return rgb
    }
  }
  return probe(el, "backgroundColor", "var(--vscode-notebook-editorBackground, var(--vscode-editor-background, Canvas))").rgb
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

/** The themes of all reports. The page is watched for good, but keeps no report that has left it. */
const themes = new Set<WeakRef<Theme>>()

function refresh_all(): void {
  for (const held of themes) {
    const theme = held.deref()
    if (theme == null) {
      themes.delete(held)
    } else {
      theme.refresh()
    }
  }
}

function watch_page(): void {
  const refresh_later = (): void => void setTimeout(refresh_all, 60)
  const observer = new MutationObserver(refresh_later)
  for (const el of [document.documentElement, document.body]) {
    observer.observe(el, {attributes: true, attributeFilter: WATCHED})
  }
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", refresh_later)
}

let is_watched = false

/** Follows the page's theme and publishes it as CSS variables on the report's root. */
export class Theme {
  palette = palette_on([255, 255, 255], LIGHT.foreground)
  readonly changed: Signal0<HasProps>
  private root: HTMLElement | null = null

  constructor(owner: HasProps) {
    this.changed = new Signal0(owner, "theme")
    themes.add(new WeakRef(this))
  }

  attach(root: HTMLElement): void {
    if (this.root === root) {
      return
    }
    this.root = root
    if (!is_watched) {
      is_watched = true
      watch_page()
    }
    this.refresh()
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
