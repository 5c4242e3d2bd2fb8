/** A logarithmic axis: values above zero over a number of pixels. */
export class LogScale {
  private readonly low: number
  private readonly high: number

  constructor(values: number[], private readonly from: number, private readonly to: number) {
    const known = values.filter((value) => value > 0 && Number.isFinite(value)).map(Math.log10)
    const low = known.reduce((least, value) => Math.min(least, value), Infinity)
    const high = known.reduce((most, value) => Math.max(most, value), -Infinity)
    // A margin, so that no point lies on the edge, and at least a decade.
    const margin = Math.max((high - low) * 0.06, (1 - (high - low)) / 2, 0.05)
    this.low = known.length == 0 ? 0 : low - margin
    this.high = known.length == 0 ? 1 : high + margin
  }

  at(value: number): number {
    return this.from + (Math.log10(value) - this.low) / (this.high - this.low) * (this.to - this.from)
  }

  /** Powers of ten, with 2 and 5 of them where there are few, or only some of them where there are many. */
  ticks(most: number): number[] {
    const decades = Math.floor(this.high) - Math.ceil(this.low) + 1
    const step = Math.max(1, Math.ceil(decades / most))
    const ticks = []
    for (let power = Math.floor(this.low); power <= this.high; power++) {
      for (const digit of decades <= 2 ? [1, 2, 5] : [1]) {
        const tick = digit * 10 ** power
        if (Math.log10(tick) >= this.low && Math.log10(tick) <= this.high && power % step == 0) {
          ticks.push(tick)
        }
      }
    }
    return ticks
  }
}
