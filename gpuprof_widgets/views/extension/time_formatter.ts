import {TickFormatter} from "@bokehjs/models/formatters/tick_formatter"

const UNITS: [number, string][] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]]

/** Ticks in ns, all in the unit of the largest, with as many decimals as tell neighbours apart. */
export class EngineeringTimeFormatter extends TickFormatter {
  static override __module__ = "gpuprof_widgets.views.models"

  doFormat(ticks: string[] | number[], _opts: {loc: number}): string[] {
    const values = ticks.map(Number)
    const largest = Math.max(...values.map(Math.abs))
    const [size, unit] = UNITS.find(([size]) => largest >= size) ?? UNITS[UNITS.length - 1]
    const step = values.length > 1 ? Math.abs(values[1] - values[0]) / size : 1
    const decimals = Math.max(0, Math.min(9, Math.ceil(-Math.log10(step) - 1e-9)))
    return values.map((value) => value == 0 ? "0" : `${(value / size).toFixed(decimals)} ${unit}`)
  }
}
