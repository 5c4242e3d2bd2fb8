import {format_bytes, format_flops, format_ns} from "./engine"
import type {OpRow, Recorded, SelfTimes} from "./engine"

/** A column of the op table. `key` is the sort key of the Python side, with `unit` its column. */
export type Column = {
  key: string
  unit: "" | "_ns" | "_bytes"
  text: string
  title: string
  width: string
  value(row: OpRow): number
  format(row: OpRow): string
  /** What has to be known about the number in a row, if anything has. */
  note?(row: OpRow): string | null
  /** The self times of which its values are shares, if they are shown as such: as in torch's table. */
  share_of: keyof SelfTimes | null
  on_gpu: boolean
  /** Left out where the page is narrow. */
  extra: boolean
}

type Value = (row: OpRow) => number

function time(key: string, text: string, title: string, value: Value, options: Partial<Pick<Column, "share_of" | "on_gpu" | "extra">>): Column {
  const format = (row: OpRow): string => value(row) == 0 ? "–" : format_ns(value(row))
  const width = options.share_of == null ? "88px" : "116px"
  return {key, unit: "_ns", text, title, width, value, format, share_of: null, on_gpu: false, extra: false, ...options}
}

function quantity(key: keyof Recorded, unit: Column["unit"], text: string, title: string, write: (value: number) => string): Column {
  const value = (row: OpRow): number => row[key]
  const format = (row: OpRow): string => value(row) == 0 ? "–" : write(value(row))
  return {key, unit, text, title, width: "96px", value, format, share_of: null, on_gpu: false, extra: false}
}

function average(total: number, calls: number): number {
  return calls == 0 ? 0 : total / calls
}

/** Whether only the GPU work of an op lies in the range. */
function began_before({calls, device_total}: OpRow): boolean {
  return calls == 0 && device_total > 0
}

const TIMES: Column[] = [
  {
    key: "calls", unit: "", text: "Calls", title: "How often it began or went on within the range", width: "72px",
    value: (row) => row.calls, format: (row) => row.calls.toLocaleString("en") + (began_before(row) ? " ·" : ""),
    note: (row) => began_before(row) ? "launched before the range; its GPU work runs in it" : null, share_of: null, on_gpu: false, extra: false,
  },
  time("device_self", "GPU self", "GPU time of the kernels that it launched itself, and its share of that of all kernels", (row) => row.device_self, {share_of: "gpu", on_gpu: true}),
  time("device_total", "GPU total", "GPU time of everything launched within it", (row) => row.device_total, {on_gpu: true, extra: true}),
  time("cpu_self", "CPU self", "CPU time without what it called, and its share of that of all ops", (row) => row.cpu_self, {share_of: "cpu"}),
  time("cpu_total", "CPU total", "CPU time with what it called, as a share of the CPU self time of all ops", (row) => row.cpu_total, {share_of: "cpu"}),
  time("cpu_average", "CPU avg", "CPU total per call", (row) => average(row.cpu_total, row.calls), {extra: true}),
]

const QUANTITIES: Column[] = [
  quantity("cpu_self_memory", "_bytes", "CPU mem", "CPU memory that it allocated less released itself", format_bytes),
  quantity("device_self_memory", "_bytes", "GPU mem", "GPU memory that it allocated less released itself", format_bytes),
  quantity("flops", "", "FLOPs", "Floating point operations, estimated from the input shapes", format_flops),
]

/** The columns that say something: without a GPU those of the GPU are left out. */
export function columns_for(on_gpu: boolean, recorded: Recorded): Column[] {
  const quantities = QUANTITIES.filter(({key}) => recorded[key as keyof Recorded])
  return [...TIMES.filter((column) => on_gpu || !column.on_gpu), ...quantities]
}

export type Order = {key: string, descending: boolean}

export function sorted(rows: OpRow[], {key, descending}: Order): OpRow[] {
  const sign = descending ? -1 : 1
  const column = [...TIMES, ...QUANTITIES].find((other) => other.key == key)
  const compare = column == null
    ? (a: OpRow, b: OpRow) => a.name.localeCompare(b.name)
    : (a: OpRow, b: OpRow) => column.value(a) - column.value(b)
  return [...rows].sort((a, b) => sign * compare(a, b) || a.name.localeCompare(b.name))
}

/** The order in which the table opens; a key that it has no column for means what is nearest. */
export function first_order(key: string, columns: Column[]): Order {
  if (key == "name") {
    return {key, descending: false}
  }
  const nearest = [key, key.replace("_memory", "_self_memory"), key.endsWith("total") ? "cpu_total" : "cpu_self"]
  return {key: nearest.find((each) => columns.some((column) => column.key == each))!, descending: true}
}
