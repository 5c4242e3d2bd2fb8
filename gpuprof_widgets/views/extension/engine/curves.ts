/** Curves that keep their value until it changes, at the resolution of a screen. */

type Steps = {ts: Float64Array, value: Float64Array}

/** Index of the last change at or before a time, -1 before the first. */
function last_at({ts}: Steps, time: number): number {
  let low = 0
  let high = ts.length
  while (low < high) {
    const middle = (low + high) >>> 1
    if (ts[middle] <= time) {
      low = middle + 1
    } else {
      high = middle
    }
  }
  return low - 1
}

/** The value that holds at a time; null before the first change, and where it is not a number. */
export function at_time(curve: Steps, time: number): number | null {
  const value = curve.value[last_at(curve, time)]
  return value == null || Number.isNaN(value) ? null : value
}

/** Per pixel of [start, end) the least and the most of the values that hold in it; NaN where none does. */
export function drawn_steps(curve: Steps, start: number, end: number, pixels: number): {least: Float64Array, most: Float64Array} {
  const {ts, value} = curve
  const least = new Float64Array(pixels).fill(NaN)
  const most = new Float64Array(pixels).fill(NaN)
  const edge = (x: number): number => start + x*(end - start)/pixels
  let i = last_at(curve, start)
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
