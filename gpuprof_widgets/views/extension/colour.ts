/** Colours as numbers: contrast is computed, never guessed. */
export type RGB = [number, number, number]

export function css([r, g, b]: RGB): string {
  return `rgb(${Math.round(r)}, ${Math.round(g)}, ${Math.round(b)})`
}

export function hex(text: string): RGB {
  const value = parseInt(text.slice(1), 16)
  return [value >> 16, (value >> 8) & 255, value & 255]
}

/** Reads what getComputedStyle returns: rgb(), rgba() or color(srgb ...). */
export function parse_colour(text: string): {rgb: RGB, alpha: number} {
  const numbers = (text.match(/-?[\d.]+(e-?\d+)?/g) ?? []).map(Number)
  const [r = 0, g = 0, b = 0, alpha = 1] = numbers
  if (numbers.length < 3) {
    return {rgb: [255, 255, 255], alpha: 0}
  }
  return text.startsWith("color(") ? {rgb: [r * 255, g * 255, b * 255], alpha} : {rgb: [r, g, b], alpha}
}

/** `a` with the share `part` of `b` in it. */
export function mix(a: RGB, b: RGB, part: number): RGB {
  return [0, 1, 2].map((i) => a[i] * (1 - part) + b[i] * part) as RGB
}

/** WCAG relative luminance. */
export function luminance(rgb: RGB): number {
  const [r, g, b] = rgb.map((value) => {
    const share = value / 255
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4
  })
  return 0.2126 * r + 0.7152 * g + 0.0722 * b
}

/** WCAG contrast ratio, 1 to 21. */
export function contrast(a: RGB, b: RGB): number {
  const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y)
  return (high + 0.05) / (low + 0.05)
}

/** Contrast of graphics with what is next to them: at least 3 (WCAG 2, 1.4.11), and room for rounding. */
export const VISIBLE = 3.1

/** Returns a colour with as little of `other` in it as gives it a contrast with `against`. */
export function with_contrast(colour: RGB, other: RGB, against: RGB, ratio: number): RGB {
  for (let part = 0; part < 1; part += 0.02) {
    const mixed = mix(colour, other, part)
    if (contrast(mixed, against) >= ratio) {
      return mixed
    }
  }
  return other
}

/** Returns the outline that a fill needs to be seen on a background; null for none. */
export function outline_of(fill: RGB, background: RGB): RGB | null {
  const outline = with_contrast(fill, ink_on(background), background, VISIBLE)
  return outline.every((part, i) => part == fill[i]) ? null : outline
}

const BLACK: RGB = [0, 0, 0]
const WHITE: RGB = [255, 255, 255]

/** Black or white, whichever reads better: one of them always has a contrast above 4.5. */
export function ink_on(fill: RGB): RGB {
  return contrast(fill, BLACK) >= contrast(fill, WHITE) ? BLACK : WHITE
}
