/** Searches in ascending times, and what they serve: unions of intervals, and curves that change in steps. */

/** Returns the index of the first value in [low, high) that is at least `bound`, `high` if none is; values ascend. */
export function first_at_or_after(values: ArrayLike<number>, bound: number, low: number = 0, high: number = values.length): number {
  while (low < high) {
    const middle = (low + high) >>> 1
    if (values[middle] < bound) {
      low = middle + 1
    } else {
      high = middle
    }
  }
  return low
}

/** Returns the index of the last value in [first, high) that is at most `bound`, -1 if none is; values ascend. */
export function last_at_or_before(values: ArrayLike<number>, bound: number, first: number = 0, high: number = values.length): number {
  let low = first
  while (low < high) {
    const middle = (low + high) >>> 1
    if (values[middle] <= bound) {
      low = middle + 1
    } else {
      high = middle
    }
  }
  return low > first ? low - 1 : -1
}

/** Returns the first and last of the most places, ascending, that lie within `room` of each other; the first of equally many. */
export function fullest_stretch(places: ArrayLike<number>, room: number): [number, number] {
  let [best, most, first] = [0, 0, 0]
  for (let last = 0; last < places.length; last++) {
    while (places[last] - places[first] > room) {
      first += 1
    }
    if (last - first + 1 > most) {
      [best, most] = [first, last - first + 1]
    }
  }
  return [places[best], places[best + most - 1]]
}

/** Disjoint, sorted intervals, and the time that they cover before each: how much of any range they cover, in O(log n). */
export type Intervals = Record<"start" | "end" | "covered_before", Float64Array>

/** Returns the time that the slices of some rows cover together; rows are sorted by start. */
export function union(ts: ArrayLike<number>, end: ArrayLike<number>, rows: Iterable<number>): Intervals {
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
  return {start: Float64Array.from(starts), end: Float64Array.from(ends), covered_before: running_sums(starts, ends)}
}

/** Returns the covered time of [start, end). */
export function covered(intervals: Intervals, start: number, end: number): number {
  return covered_until(intervals, end) - covered_until(intervals, start)
}

function covered_until({start, end, covered_before}: Intervals, time: number): number {
  const i = first_at_or_after(start, time) - 1
  return i < 0 ? 0 : covered_before[i] + Math.min(end[i], time) - start[i]
}

function running_sums(starts: number[], ends: number[]): Float64Array {
  const before = new Float64Array(starts.length)
  for (let i = 1; i < starts.length; i++) {
    before[i] = before[i - 1] + ends[i - 1] - starts[i - 1]
  }
  return before
}

/** A quantity that keeps its value from each time in `ts` until the next. */
type Steps = {ts: Float64Array, value: Float64Array}

/** Returns the value that holds at a time; null before the first change, and where it is not a number. */
export function at_time(curve: Steps, time: number): number | null {
  const value = curve.value[last_at_or_before(curve.ts, time)]
  return value == null || Number.isNaN(value) ? null : value
}

/** Returns the least and the greatest value that holds in each pixel of [start, end); NaN where none does. */
export function drawn_steps(curve: Steps, start: number, end: number, pixels: number): {least: Float64Array, most: Float64Array} {
  const {ts, value} = curve
  const least = new Float64Array(pixels).fill(NaN)
  const most = new Float64Array(pixels).fill(NaN)
  const edge = (x: number): number => start + x*(end - start)/pixels
  let i = last_at_or_before(ts, start)
  for (let x = 0; x < pixels; x++) {
    const until = edge(x + 1)
    i += Number(ts[i + 1] == edge(x))
    let [low, high] = i < 0 ? [NaN, NaN] : [value[i], value[i]]
    while (i + 1 < ts.length && ts[i + 1] < until) {
      i += 1
      low = Number.isNaN(low) || value[i] < low ? value[i] : low
      high = Number.isNaN(high) || value[i] > high ? value[i] : high
    }
    least[x] = low
    most[x] = high
  }
  return {least, most}
}
