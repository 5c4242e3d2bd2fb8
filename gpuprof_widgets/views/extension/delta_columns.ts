import {format_ns, format_ratio} from "./engine"
import {signed_ns} from "./signed"

/** One row; `names`: what each run calls it, `category`: "" where no events are meant. */
export type DeltaRow = {
  name: string
  category: string
  names: [string[], string[]]
  change: string
  calls: [number, number] | null
  time: [number, number]
  spread: number | null
}

export type DeltaColumn = {
  key: string
  text: string
  title: string
  width: string
  /** left out where there is little room */
  extra: boolean
  value: (row: DeltaRow) => number | string
  format: (row: DeltaRow) => string
}

export function delta({time: [a, b]}: DeltaRow): number {
  return b - a
}

function count(value: number): string {
  return Number(value.toPrecision(4)).toLocaleString("en")
}

function calls_text({calls}: DeltaRow): string {
  if (calls == null) {
    return ""
  }
  return calls[0] == calls[1] ? count(calls[0]) : `${count(calls[0])} → ${count(calls[1])}`
}

export const DELTA_COLUMNS: DeltaColumn[] = [
  {
    key: "delta", text: "B − A", title: "Time in B less time in A, by its size", width: "170px", extra: false,
    value: (row) => Math.abs(delta(row)), format: (row) => delta(row) == 0 ? "=" : signed_ns(delta(row)),
  },
  {key: "a", text: "A", title: "Time in A", width: "86px", extra: false, value: ({time}) => time[0], format: ({time}) => format_ns(time[0])},
  {key: "b", text: "B", title: "Time in B", width: "86px", extra: false, value: ({time}) => time[1], format: ({time}) => format_ns(time[1])},
  {
    key: "ratio", text: "B / A", title: "Time in B as a share of that in A", width: "76px", extra: true,
    value: ({time: [a, b]}) => a == 0 ? Infinity : b / a, format: ({time: [a, b]}) => a == 0 ? "" : format_ratio(b / a),
  },
  {
    key: "spread", text: "spread", title: "How far the steps of one run lie apart (interquartile range)", width: "86px", extra: true,
    value: ({spread}) => spread ?? -1, format: ({spread}) => spread == null ? "" : format_ns(spread),
  },
  {
    key: "calls", text: "calls", title: "Calls in A → in B, by their difference", width: "120px", extra: true,
    value: ({calls}) => calls == null ? 0 : Math.abs(calls[1] - calls[0]), format: calls_text,
  },
  {
    key: "change", text: "change", title: "Whether it is more, less, new, gone, or noise", width: "82px", extra: false,
    value: ({change}) => change, format: ({change}) => change == "added" ? "new in B" : change,
  },
]

/** Rows by a column, or by name. */
export function sorted_deltas(rows: DeltaRow[], key: string, descending: boolean): DeltaRow[] {
  const value = DELTA_COLUMNS.find((column) => column.key == key)?.value ?? (({name}: DeltaRow) => name)
  const sign = descending ? -1 : 1
  return [...rows].sort((one, other) => {
    const [a, b] = [value(one), value(other)]
    return sign * (a < b ? -1 : Number(a > b))
  })
}
