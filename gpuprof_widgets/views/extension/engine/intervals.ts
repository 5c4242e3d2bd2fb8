/** Disjoint, sorted intervals with running sums: how much of any range they cover, in O(log n). */

export class Intervals {
  private constructor(
    readonly start: Float64Array,
    readonly end: Float64Array,
    /** covered time before each interval */
    private readonly before: Float64Array,
  ) {}

  /** The time that the slices cover together; `rows` must be sorted by start. */
  static union(ts: Float64Array, end: Float64Array, rows: Iterable<number>): Intervals {
    const starts: number[] = []
    const ends: number[] = []
    for (const row of rows) {
      if (end[row] <= ts[row]) {
        continue
      }
      const last = ends.length - 1
      if (last >= 0 && ts[row] <= ends[last]) {
        ends[last] = Math.max(ends[last], end[row])
      } else {
        starts.push(ts[row])
        ends.push(end[row])
      }
    }
    return new Intervals(Float64Array.from(starts), Float64Array.from(ends), running_sums(starts, ends))
  }

  /** Covered time of [start, end). */
  covered(start: number, end: number): number {
    return this.covered_until(end) - this.covered_until(start)
  }

  private covered_until(time: number): number {
    const i = first_at_or_after(this.start, time) - 1
    return i < 0 ? 0 : this.before[i] + Math.min(this.end[i], time) - this.start[i]
  }
}

function running_sums(starts: number[], ends: number[]): Float64Array {
  const before = new Float64Array(starts.length)
  for (let i = 1; i < starts.length; i++) {
    before[i] = before[i - 1] + ends[i - 1] - starts[i - 1]
  }
  return before
}

/** Index of the first of the sorted values that is >= wanted, within [low, high). */
export function first_at_or_after(values: Float64Array, wanted: number, low: number = 0, high: number = values.length): number {
  while (low < high) {
    const middle = (low + high) >>> 1
    if (values[middle] < wanted) {
      low = middle + 1
    } else {
      high = middle
    }
  }
  return low
}
