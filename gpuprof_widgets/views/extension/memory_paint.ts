import type {Context2d} from "@bokehjs/core/util/canvas"

import {painted} from "./categories"
import {css, hex, mix, type RGB} from "./colour"
import {format_bytes, type Memory, type MemoryBlock} from "./engine"
import {x_near_view} from "./paint"
import type {Palette} from "./theme"

/** A time range (ns) over a width, and bytes from `low` to `high` over a height, in pixels. */
export type MemoryScale = {start: number, end: number, width: number, low: number, high: number, height: number}

const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
/** Pixels: a selected block that is narrower has a line above it, to be found. */
const NARROW = 12
const MOST_TICKS = 6

export function y_of(bytes: number, {low, high, height}: MemoryScale): number {
  return height - (bytes - low) / (high - low) * height
}

/** Round numbers of bytes on the axis: powers of two, at most six of them. */
export function byte_ticks(low: number, high: number): number[] {
  const step = 2 ** Math.ceil(Math.log2(Math.max((high - low) / MOST_TICKS, 1)))
  const first = Math.ceil(low / step)
  const ticks = []
  for (let i = first; i * step <= high; i++) {
    ticks.push(i * step)
  }
  return ticks
}

export function paint_grid(ctx: Context2d, scale: MemoryScale, palette: Palette): void {
  ctx.fillStyle = css(palette.line)
  for (const tick of byte_ticks(scale.low, scale.high)) {
    ctx.fillRect(0, Math.round(y_of(tick, scale)), scale.width, 1)
  }
}

/** Paints the memory of a device, stacked by category; of several moments in one pixel the fullest. */
export function paint_stacks(
  ctx: Context2d, memory: Memory, device: number, moments: Int32Array, scale: MemoryScale, palette: Palette,
): void {
  const paints = memory.categories.map((category) => painted(memory_colour(category, palette.background), palette.background))
  for (let x = 0; x < moments.length;) {
    let end = x + 1
    while (end < moments.length && moments[end] == moments[x]) {
      end += 1
    }
    let below = 0
    memory.devices[device].stack(moments[x]).forEach((bytes, category) => {
      if (bytes > 0) {
        const top = y_of(below + bytes, scale)
        const {fill, outline} = paints[category]
        const bottom = y_of(below, scale)
        ctx.fillStyle = fill
        ctx.fillRect(x, top, end - x, bottom - top)
        if (outline != null) {
          ctx.fillStyle = outline
          ctx.fillRect(x, top, end - x, Math.min(1, bottom - top))
        }
        below += bytes
      }
    })
    x = end
  }
}

/** Paints the bytes that the allocator had reserved, as a dashed line above the allocated ones. */
export function paint_reserved(ctx: Context2d, memory: Memory, device: number, scale: MemoryScale, palette: Palette): void {
  const {moments, bytes} = memory.devices[device].reserved
  if (moments.length == 0) {
    return
  }
  ctx.save()
  ctx.strokeStyle = css(palette.foreground)
  ctx.lineWidth = 1.5
  ctx.setLineDash([5, 3])
  ctx.beginPath()
  ctx.moveTo(0, y_of(memory.devices[device].reserved_at(scale.start)!, scale))
  moments.forEach((moment, i) => {
    if (moment > scale.start && moment < scale.end) {
      const x = x_near_view(moment, scale)
      ctx.lineTo(x, y_of(bytes[Math.max(i - 1, 0)], scale))
      ctx.lineTo(x, y_of(bytes[i], scale))
    }
  })
  ctx.lineTo(scale.width, y_of(memory.devices[device].reserved_at(scale.end)!, scale))
  ctx.stroke()
  ctx.restore()
}

/** Marks the peak of the device, with its bytes. */
export function paint_peak(ctx: Context2d, moment: number, bytes: number, scale: MemoryScale, palette: Palette): void {
  if (moment < scale.start || moment > scale.end) {
    return
  }
  const x = x_near_view(moment, scale)
  const y = y_of(bytes, scale)
  ctx.fillStyle = css(palette.foreground)
  ctx.beginPath()
  ctx.moveTo(x, y)
  ctx.lineTo(x - 5, y - 8)
  ctx.lineTo(x + 5, y - 8)
  ctx.fill()
  ctx.font = FONT
  ctx.textBaseline = "middle"
  const text = `peak ${format_bytes(bytes)}`
  const {width} = ctx.measureText(text)
  const left = x + 9 + width + 4 <= scale.width ? x + 9 : x - 9 - width
  const middle = Math.max(y - 8, 9)
  ctx.fillStyle = css(palette.background)
  ctx.fillRect(left - 3, middle - 8, width + 6, 15)
  ctx.fillStyle = css(palette.foreground)
  ctx.textAlign = "left"
  ctx.fillText(text, left, middle)
}

/** Paints the selected block as a rectangle: as wide as its life, as high as its bytes. */
export function paint_block(ctx: Context2d, block: MemoryBlock, scale: MemoryScale, palette: Palette): void {
  const x0 = x_near_view(block.start, scale)
  const x1 = x_near_view(block.end, scale)
  const bottom = scale.height
  const top = Math.min(y_of(scale.low + block.bytes, scale), bottom - 3)
  const width = Math.max(x1 - x0, 3)
  ctx.save()
  if (width < NARROW) {
    ctx.fillStyle = css(palette.accent)
    ctx.fillRect(x0 + width / 2 - 1, 0, 2, top)
  }
  ctx.globalAlpha = 0.45
  ctx.fillStyle = css(palette.background)
  ctx.fillRect(x0, top, width, bottom - top)
  ctx.globalAlpha = 1
  ctx.lineWidth = 3
  ctx.strokeStyle = css(palette.background)
  ctx.strokeRect(x0 + 1, top, width - 2, bottom - top - 1)
  ctx.lineWidth = 2
  ctx.strokeStyle = css(palette.accent)
  ctx.strokeRect(x0 + 1, top, width - 2, bottom - top - 1)
  ctx.restore()
}

/** Okabe-Ito's colours by the use of the memory; a category that is not named is grey. */
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

/** Returns the fill of a category; memory from before the record is paler, its owner is unknown. */
export function memory_colour(category: string, background: RGB): RGB {
  return category == BEFORE ? mix(GREY, background, 0.55) : Object.hasOwn(COLOURS, category) ? COLOURS[category] : GREY
}
