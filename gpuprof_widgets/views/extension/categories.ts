import {css, hex, ink_on, mix, outline_of, type RGB} from "./colour"
import type {Palette} from "./theme"

/** Okabe-Ito's colours, which are distinct in all common kinds of colour blindness. */
export const OKABE_ITO = {
  orange: hex("#E69F00"),
  sky: hex("#56B4E9"),
  green: hex("#009E73"),
  yellow: hex("#F0E442"),
  blue: hex("#0072B2"),
  vermillion: hex("#D55E00"),
  purple: hex("#CC79A7"),
  grey: hex("#999999"),
}

/** Regions around the ops differ in lightness too. */
const AROUND = {
  slate: hex("#4A5866"),
  pink: hex("#E3B5CD"),
}

export type Kind = {text: string, colour: RGB, categories: string[]}

/** The entries of the legend, in the order of the timeline; a category that is not named is "other". */
export const KINDS: Kind[] = [
  {text: "cell line", colour: AROUND.slate, categories: ["cell_line"]},
  {text: "module", colour: AROUND.pink, categories: ["module", "module_backward"]},
  {text: "CPU op", colour: OKABE_ITO.sky, categories: ["cpu_op"]},
  {text: "annotation", colour: OKABE_ITO.yellow, categories: ["user_annotation", "gpu_user_annotation", "nvtx_range"]},
  {text: "runtime call", colour: OKABE_ITO.orange, categories: ["cuda_runtime", "cuda_driver"]},
  {text: "Python", colour: OKABE_ITO.purple, categories: ["python_function", "worker", "cprofile"]},
  {text: "kernel", colour: OKABE_ITO.green, categories: ["kernel"]},
  {text: "copy", colour: OKABE_ITO.blue, categories: ["gpu_memcpy", "gpu_memset"]},
  {text: "sync, overhead", colour: OKABE_ITO.vermillion, categories: ["cuda_sync", "overhead"]},
  {text: "other", colour: OKABE_ITO.grey, categories: []},
]

const OTHER = KINDS[KINDS.length - 1]

const BLACK: RGB = [0, 0, 0]
const WHITE: RGB = [255, 255, 255]

/**
 * The families of kernels, in the order of analyses/kernel_families.py: tints of the same colours that differ from those of the
 * other work on a GPU, and from each other in lightness where the hue is alike.
 */
export const FAMILIES: Omit<Kind, "categories">[] = [
  {text: "matrix product", colour: OKABE_ITO.green},
  {text: "convolution", colour: mix(OKABE_ITO.green, BLACK, 0.5)},
  {text: "attention", colour: mix(OKABE_ITO.blue, BLACK, 0.55)},
  {text: "normalisation", colour: mix(OKABE_ITO.orange, BLACK, 0.45)},
  {text: "softmax", colour: mix(OKABE_ITO.vermillion, BLACK, 0.5)},
  {text: "reduction", colour: mix(OKABE_ITO.sky, BLACK, 0.35)},
  {text: "elementwise", colour: mix(OKABE_ITO.green, WHITE, 0.6)},
  {text: "lookup", colour: mix(OKABE_ITO.yellow, BLACK, 0.3)},
  {text: "sort, scan", colour: mix(OKABE_ITO.purple, BLACK, 0.5)},
  {text: "communication", colour: mix(mix(OKABE_ITO.vermillion, OKABE_ITO.purple, 0.5), WHITE, 0.45)},
  {text: "other kernel", colour: mix(OKABE_ITO.grey, BLACK, 0.3)},
]

/** Calls of any program's runtime or driver are of one kind. */
const RUNTIME_CALL = /_(runtime|driver)$/

export function kind_of(category: string): Kind {
  const known = RUNTIME_CALL.test(category) ? "cuda_runtime" : category
  return KINDS.find((kind) => kind.categories.includes(known)) ?? OTHER
}

/** Colours of a bar and of its text, and of its outline where the fill alone is too pale to be seen. */
export type Paint = {fill: string, ink: string, outline: string | null}

/** Also the colours of the bar where others are selected. */
export type BarPaint = Paint & {dim_fill: string, dim_ink: string}

function name_shade(name: string): number {
  let hash = 0
  for (let i = 0; i < name.length; i++) {
    hash = (hash * 31 + name.charCodeAt(i)) | 0
  }
  return (Math.abs(hash) % 5) * 0.06
}

/** Returns how a bar of a colour is drawn on a background. */
export function painted(fill: RGB, background: RGB): Paint {
  const outline = outline_of(fill, background)
  return {fill: css(fill), ink: css(ink_on(fill)), outline: outline == null ? null : css(outline)}
}

/** Fill and text colour of a bar of a category or of a kernel's family (-1: none); neighbours of one category differ a little by name. */
export function paint_of(name: string, category: string, background: RGB, family: number = -1): BarPaint {
  const fill = FAMILIES[family]?.colour ?? mix(kind_of(category).colour, WHITE, name_shade(name))
  const dim = mix(fill, background, 0.78)
  return {...painted(fill, background), dim_fill: css(dim), dim_ink: css(ink_on(dim))}
}

/** Grew and shrank: orange and blue are distinct in all common kinds of colour blindness, and the label has the sign. */
export const GREW = OKABE_ITO.orange
export const SHRANK = OKABE_ITO.blue
/** Change, as a share of the longer of both times, from which on the colour is full. */
const FULL = 0.5

/** Returns the colours of a bar by the share by which it changed (-1: gone, 1: new). */
export function diff_paint(change: number, {background, foreground}: Palette): Paint {
  const neutral = mix(foreground, background, 0.86)
  const fill: RGB = change == 0 ? neutral : mix(neutral, change > 0 ? GREW : SHRANK, 0.15 + 0.85 * Math.min(1, Math.abs(change) / FULL))
  return painted(fill, background)
}
