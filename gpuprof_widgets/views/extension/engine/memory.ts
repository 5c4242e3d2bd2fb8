/** Memory over time: what each device held by category, and which big blocks were alive when. */

import type {MemoryHeader} from "./header"
import {last_at_or_before} from "./intervals"

/** A block of memory; times in ns, infinite where it lived before or after the record. */
export type MemoryBlock = {
  index: number
  device: number
  start: number
  end: number
  bytes: number
  category: number
  op_name: string
  module_name: string
  line_name: string
  tensor: string
  /** rows of the op that allocated it and of the instants of allocation and release, -1 for none */
  op: number
  row: number
  release: number
}

/** What a device held: `moments[i]` (ns) until the next, `stack(i)` bytes per category. */
export class MemoryDevice {
  readonly name: string
  readonly exact: boolean
  readonly moments: Float64Array
  readonly totals: Float64Array
  readonly reserved: {moments: Float64Array, bytes: Float64Array}
  /** bytes per moment and category, one moment after the other */
  private readonly stacks: Float64Array

  constructor(header: MemoryHeader["devices"][number], private readonly categories: number) {
    this.name = header.name
    this.exact = header.exact
    const times = sums(header.ts)
    const first = times.map((ts, i) => i == 0 || ts != times[i - 1] ? 1 : 0)
    const number = sums(first).map((count) => count - 1)
    const length = times.length == 0 ? 0 : number[times.length - 1] + 1
    this.moments = new Float64Array(length)
    this.stacks = new Float64Array(length*categories)
    times.forEach((ts, i) => {
      this.moments[number[i]] = ts
      this.stacks[number[i]*categories + header.category[i]] += header.bytes[i]
    })
    for (let i = categories; i < this.stacks.length; i++) {
      this.stacks[i] += this.stacks[i - categories]
    }
    this.totals = Float64Array.from({length}, (_, i) => this.stack(i).reduce((sum, bytes) => sum + bytes, 0))
    this.reserved = {moments: sums(header.reserved_ts), bytes: Float64Array.from(header.reserved)}
  }

  /** Bytes per category from a moment on; nothing before the first one (-1). */
  stack(moment: number): Float64Array {
    const {categories} = this
    return moment < 0 ? new Float64Array(categories) : this.stacks.subarray(moment*categories, (moment + 1)*categories)
  }

  /** The moment that holds at a time, -1 before the first. */
  at(ns: number): number {
    return last_at_or_before(this.moments, ns)
  }

  total_at(ns: number): number {
    return this.totals[this.at(ns)] ?? 0
  }

  /** Bytes reserved at a time; null where that is not known. */
  reserved_at(ns: number): number | null {
    const {moments, bytes} = this.reserved
    return moments.length == 0 ? null : bytes[Math.max(0, last_at_or_before(moments, ns))]
  }

  /** The fullest moment that holds at some time of [start, end], the first of equals; -1 where none does. */
  fullest(start: number, end: number): number {
    let best = this.at(start)
    for (let i = best + 1; i < this.moments.length && this.moments[i] <= end; i++) {
      if (best < 0 || this.totals[i] > this.totals[best]) {
        best = i
      }
    }
    return best
  }

  /** Per pixel of [start, end] the fullest moment in it: narrow peaks stay to be seen. */
  pixels(start: number, end: number, count: number): Int32Array {
    const step = (end - start)/count
    return Int32Array.from({length: count}, (_, x) => this.fullest(start + x*step, start + (x + 1)*step))
  }

  get most(): number {
    return Math.max(0, ...this.reserved.bytes, this.totals.reduce((most, total) => Math.max(most, total), 0))
  }
}

/** All that the page knows of a record's memory. */
export class Memory {
  readonly categories: string[]
  readonly devices: MemoryDevice[]
  readonly blocks: MemoryBlock[]
  readonly left_out: number

  constructor({categories, devices, blocks}: MemoryHeader) {
    this.categories = categories
    this.devices = devices.map((device) => new MemoryDevice(device, categories.length))
    this.left_out = blocks.left_out
    const text = (code: number): string => blocks.names[code]
    this.blocks = blocks.device.map((device, i) => ({
      index: i,
      device,
      start: blocks.start[i] < 0 ? -Infinity : blocks.start[i],
      end: blocks.dur[i] < 0 ? Infinity : Math.max(blocks.start[i], 0) + blocks.dur[i],
      bytes: blocks.bytes[i],
      category: blocks.category[i],
      op_name: text(blocks.op_name[i]),
      module_name: text(blocks.module_name[i]),
      line_name: text(blocks.line_name[i]),
      tensor: text(blocks.tensor[i]),
      op: blocks.op[i],
      row: blocks.row[i],
      release: blocks.release[i],
    }))
  }

  /** The listed blocks of a device that lived at some time of [start, end], biggest first. */
  living(device: number, start: number, end: number): MemoryBlock[] {
    return this.blocks
      .filter((block) => block.device == device && block.start <= end && block.end > start)
      .sort((a, b) => b.bytes - a.bytes || a.index - b.index)
  }

  /** What lies at a height (bytes from below) of a device's stack at a time: its category and block, where known. */
  hit(device: number, ns: number, height: number): {category: number, block: MemoryBlock | null} | null {
    const stack = this.devices[device].stack(this.devices[device].at(ns))
    let below = 0
    const category = stack.findIndex((bytes) => {
      below += bytes
      return height < below
    })
    if (category < 0 || height < 0) {
      return null
    }
    let within = height - (below - stack[category])
    const alive = this.living(device, ns, ns).filter((block) => block.category == category)
    for (const block of alive) {
      if (within < block.bytes) {
        return {category, block}
      }
      within -= block.bytes
    }
    return {category, block: null}
  }
}

function sums(steps: ArrayLike<number>): Float64Array {
  let sum = 0
  return Float64Array.from(steps, (step) => sum += step)
}
