/** The payload's header: the strings, the tracks and the layout of the columns. */

export type TrackKind = "cpu" | "python" | "worker" | "annotation" | "gpu" | "copy" | "other"

export type TrackInfo = {
  kind: TrackKind
  label: string
  process: string
  /** tid or stream as the trace has it */
  thread: string
  /** equal for the tracks of one thread or stream (its ops and its Python frames) */
  lane: number
  /** GPU index, -1 for the CPU */
  device: number
  /** GPU stream, -1 for the CPU */
  stream: number
  rows: number
}

/** A column of `rows` unsigned integers of `width` bytes, byte planes apart: all lowest bytes first. */
export type ColumnInfo = {
  name: string
  width: number
  /**
   * "delta": differences to the previous row of the same track; "link": rows, as 0 for none, else
   * one more than the sign-folded step from the row named last; "signed": sign-folded values.
   */
  encoding: "plain" | "delta" | "link" | "signed"
}

/** One node of the call tree that was estimated from cProfile's edges; times in ns; the first is the root. */
export type CallNode = {
  /** node index, -1 for the root; a parent stands before its children */
  parent: number
  name: string
  calls: number
  total_ns: number
  self_ns: number
  /** whether it is no user code */
  library: boolean
}

/** The lines of the recorded cells; the slices of a line are known by their label. */
export type LineTable = {
  /** `text`: its lines, the first of which has the number `first`; none where the text is not known */
  cells: {name: string, first: number, text: string[]}[]
  /** index into cells, number, code; in the order of the cells */
  lines: [number, number, string][]
  /** label, index into lines, 1 for later pieces of an execution */
  labels: [number, number, 0 | 1][]
  /** labels of calls that wait for the GPU */
  waits: number[]
  /** labels of calls that waited for the copy that they launched */
  copy_waits: number[]
  /** number of runs of a line that are recorded at most, 0 where it is not known */
  limit: number
  /** index into lines, 1 where it ran more often than that, the lines whose further runs count for it */
  incomplete: [number, 0 | 1, number[]][]
}

/** Memory of the devices over time and its big blocks; see views/page_panels.py. Times in ns. */
export type MemoryHeader = {
  categories: string[]
  devices: {
    name: string
    /** of each change: ns since the one before it, index into categories, bytes */
    ts: number[]
    category: number[]
    bytes: number[]
    /** the same of the reserved bytes: ns since the change before it, the new total */
    reserved_ts: number[]
    reserved: number[]
    /** whether every change is there */
    exact: boolean
  }[]
  blocks: MemoryColumns
}

/** Columns by block, in order of time; names are indices into `names`, rows -1 where there is none. */
export type MemoryColumns = {
  device: number[]
  /** ns, -1 for from before the record */
  start: number[]
  /** ns, -1 for not released in the record */
  dur: number[]
  bytes: number[]
  category: number[]
  op_name: number[]
  module_name: number[]
  line_name: number[]
  tensor: number[]
  names: string[]
  op: number[]
  row: number[]
  release: number[]
  /** smaller blocks that are not listed */
  left_out: number
}

/** Values of any length behind the columns; "steps" are sign-folded differences to the one before. */
export type ArrayInfo = {length: number, width: number, encoding: "plain" | "signed" | "steps" | "float"}

/** The unit of a column, see views/table.py. A "change" is a signed time, a "moment" one since the trace's start. */
export type Unit =
  "text" | "count" | "number" | "ns" | "change" | "moment" | "bytes" | "bytes/s" | "flop" | "flop/s" | "share" | "ratio" | "address"
export type Aggregate = "" | "time" | "count" | "sum" | "mean" | "min" | "max" | "covered" | "share" | "ratio"
export type Cell = string | number | null

/** A table as views/table.py sends it. */
export type TableHeader = {
  title: string
  sort: string
  /** key, label, unit, aggregate, of */
  columns: [string, string, Unit, Aggregate, string][]
  length: number
  /** per column its values, null where there is none */
  values: Cell[][]
}

/** A panel of views/panels, see views/page_panels.py; numbers that name an array are positions in `arrays`. */
export type PanelHeader = TableHeader & {
  name: string
  note: string
  /** only the longest of too many events are there */
  cut: boolean
  /**
   * Slices by row, `count` of each; or ranges (ticks) by time: row of each, start after the end of the one before; or the stretches
   * in which slices of some `tracks` were innermost: `frames`, per label its row + 1.
   */
  events: {
    count?: number, group?: number, start?: number, dur?: number, row?: number, track?: number, of: Record<string, number>
    frames?: number, tracks?: number[]
  } | null
  /** times in ns */
  curves: {name: string, unit: Unit, ts: number, value: number, exact: boolean}[]
  points: {x: string, y: string, size: string, lines: [number[], number[], string][]} | null
  bars: {group: string, part: string, value: string} | null
}

export type Header = {
  version: 1
  tick_ns: number
  start_ns: number
  end_ns: number
  rows: number
  names: string[]
  categories: string[]
  /** pairs of indices into names and categories; what the column `label` points to */
  label: [number, number][]
  /** per label the index of its kernels' family (see analyses/kernel_families.py), -1 for other work */
  families: number[]
  /** labels of Python frames that are no user code */
  library: number[]
  /** labels that get no line in an op table */
  unlisted: number[]
  shapes: string[]
  tracks: TrackInfo[]
  columns: ColumnInfo[]
  calls: CallNode[] | null
  lines: LineTable | null
  /** by the name of the module */
  module_classes: Record<string, string>
  memory: MemoryHeader | null
  arrays: ArrayInfo[]
  panels: PanelHeader[]
  /** how the record was cut to fit the budget, one line each, to be shown on the page */
  notes: string[]
}
