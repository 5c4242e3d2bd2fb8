import type {RGB} from "./colour"
import {css, hex, mix} from "./colour"

/** Okabe-Ito's colours by what memory was for; a category that is not named is grey. */
const COLOURS: Record<string, RGB> = {
  "parameters": hex("#009E73"),
  "gradients": hex("#0072B2"),
  "optimizer state": hex("#E69F00"),
  "inputs": hex("#F0E442"),
  "activations": hex("#D55E00"),
  "autograd detail": hex("#CC79A7"),
  "temporaries": hex("#56B4E9"),
}
const GREY = hex("#999999")
const BEFORE = "before the record"

/** Fill of a category; what nobody is known to own steps back. */
export function memory_colour(category: string, background: RGB): string {
  return css(category == BEFORE ? mix(GREY, background, 0.55) : COLOURS[category] ?? GREY)
}
