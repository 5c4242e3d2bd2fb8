/** Whether a record's header and columns belong together and can be read without end: a file may have been written to harm. */

import type {Columns, Numbers} from "./columns"
import type {ColumnInfo, Header, LineTable, TableHeader} from "./header"
import {DamagedData, demand, either, fields, flag, list, nothing, number, one_of, text, then, tuple, values, whole, type Check} from "./shapes"

const MOST_ROWS = 2 ** 27
const MOST_TRACKS = 2 ** 16
const MOST_ARRAYS = 2 ** 16

const ENCODINGS: Record<string, ColumnInfo["encoding"]> = {
  ts: "delta", dur: "plain", label: "plain", owner: "link", parent: "plain", op: "link", before: "signed", after: "signed", forward: "link",
  shape: "plain", bytes: "signed", device_bytes: "signed", flops: "signed", count: "plain",
}

const moment = whole()
const numbers = list(number)
const texts = list(text)
const row = whole(-1, MOST_ROWS)
const unit = one_of(
  "text", "count", "number", "ns", "change", "moment", "bytes", "bytes/s", "flop", "flop/s", "share", "ratio", "address",
)
const aggregate = one_of("", "time", "count", "sum", "mean", "min", "max", "covered", "share", "ratio")

/** A table as views/table_renderers.py makes it, with more fields. */
export function table(more: Record<string, Check>): Check {
  const columns = list(tuple(text, text, unit, aggregate, text))
  const shape = fields({...more, title: text, sort: text, columns, length: whole(0, MOST_ROWS)})
  return then<TableHeader>(shape, ({columns, length}) =>
    fields({values: list(list(either(number, nothing, text), {length}), {length: columns.length})}))
}

/** Throws a `DamagedData` where a header is not what header.ts says, or needs more than `byte_count` bytes behind it. */
export function check_header(header: Header, byte_count: number): void {
  const something: Check = () => null
  demand(fields({rows: whole(0, MOST_ROWS), names: texts, categories: texts, label: list(something), arrays: list(something)}), header)
  const {rows, names, categories, label, arrays} = header
  demand(fields({
    version: whole(1, 2),
    tick_ns: whole(1, 1_000_000_001),
    start_ns: moment,
    end_ns: moment,
    label: list(tuple(whole(0, names.length), whole(0, categories.length))),
    families: list(whole(-1, 1000)),
    library: list(whole(0, label.length)),
    unlisted: list(whole(0, label.length)),
    shapes: texts,
    tracks: list(fields({
      kind: one_of("cpu", "python", "worker", "annotation", "gpu", "copy", "other"),
      label: text,
      process: text,
      thread: text,
      lane: number,
      device: number,
      stream: number,
      rows: whole(0, rows + 1),
    }), {most: MOST_TRACKS}),
    columns: list(then<ColumnInfo>(
      fields({name: one_of(...Object.keys(ENCODINGS)), width: whole(1, 9)}),
      ({name}) => fields({encoding: one_of(ENCODINGS[name])}),
    ), {most: Object.keys(ENCODINGS).length}),
    arrays: list(either(
      fields({length: whole(0, MOST_ROWS), width: whole(1, 9), encoding: one_of("plain", "signed", "steps")}),
      fields({length: whole(0, MOST_ROWS), width: whole(8, 9), encoding: one_of("float")}),
    ), {most: MOST_ARRAYS}),
    calls: either(nothing, list(fields({parent: whole(-1), name: text, calls: number, total_ns: number, self_ns: number, library: flag}))),
    lines: either(nothing, then<LineTable>(
      fields({
        cells: list(fields({name: text, first: whole(), text: texts})),
        lines: list(tuple(whole(0), whole(), text)),
        waits: list(whole(0)),
        copy_waits: list(whole(0)),
        limit: number,
      }),
      ({cells, lines}) => line_check(label.length, whole(0, cells.length), whole(0, lines.length)),
    )),
    module_classes: values(text),
    memory: either(nothing, fields({
      categories: texts,
      devices: list(fields({
        name: text, ts: numbers, category: numbers, bytes: numbers, reserved_ts: numbers, reserved: numbers, exact: flag,
      })),
      blocks: fields({
        ...Object.fromEntries(BLOCK_NUMBERS.map((name) => [name, numbers])),
        names: texts,
        op: list(row),
        row: list(row),
        release: list(row),
        left_out: whole(0),
      }),
    })),
    panels: list(panel_check(whole(0, arrays.length))),
    notes: texts,
  }), header)
  check_calls(header)
  check_sizes(header, byte_count)
}

const BLOCK_NUMBERS = ["device", "start", "dur", "bytes", "category", "op_name", "module_name", "line_name", "tensor"]

/** `position`: of an array of the header. */
function panel_check(position: Check): Check {
  const events = fields({of: values(position)}, {
    ...Object.fromEntries(["count", "group", "start", "dur", "row", "track", "frames"].map((name) => [name, position])),
    tracks: list(whole(0, MOST_TRACKS)),
  })
  return table({
    name: text,
    note: text,
    cut: flag,
    events: either(nothing, events),
    curves: list(fields({name: text, unit, ts: position, value: position, exact: flag})),
    points: either(nothing, fields({x: text, y: text, size: text, lines: list(tuple(numbers, numbers, text))})),
    bars: either(nothing, fields({group: text, part: text, value: text})),
  })
}

/** What in a table of lines names its cells and lines. */
function line_check(labels: number, cell: Check, line: Check): Check {
  return fields({
    lines: list(tuple(cell, whole(), text)),
    labels: list(tuple(whole(0, labels), line, whole(0, 2))),
    incomplete: list(tuple(line, whole(0, 2), list(line))),
  })
}

/** A parent stands before its children, so that every way up ends. */
function check_calls({calls}: Header): void {
  const wrong = calls?.findIndex(({parent}, i) => parent >= i) ?? -1
  if (wrong >= 0) {
    throw new DamagedData({wanted: "after its parent", place: `.calls[${wrong}]`})
  }
}

function check_sizes({rows, tracks, columns, arrays}: Header, byte_count: number): void {
  const needed = columns.reduce((sum, {width}) => sum + width * rows, 0) + arrays.reduce((sum, {width, length}) => sum + width * length, 0)
  if (needed > byte_count) {
    throw new DamagedData({wanted: `${needed} bytes long, as its header says`, place: ""})
  }
  if (tracks.reduce((sum, track) => sum + track.rows, 0) != rows) {
    throw new DamagedData({wanted: `of ${rows} rows`, place: ".tracks"})
  }
}

/** Throws a `DamagedData` where decoded columns name what is not there, or a way up would never end. */
export function check_columns({rows, label, shapes}: Header, columns: Columns): void {
  for (const name of ["ts", "dur", "label"]) {
    if (columns.get(name)?.length !== rows) {
      throw new DamagedData({wanted: `${rows} numbers`, place: `column ${name}`})
    }
  }
  check_range("label", columns, 0, () => label.length)
  check_range("shape", columns, 0, () => shapes.length + 1)
  for (const name of ["owner", "op", "forward"]) {
    check_range(name, columns, -1, () => rows)
  }
  check_range("parent", columns, 0, (row) => row + 1) // the distance upwards
}

function check_range(name: string, columns: Columns, least: number, end_of: (row: number) => number): void {
  const column: Numbers = columns.get(name) ?? new Uint8Array(0)
  for (let row = 0; row < column.length; row++) {
    if (!(column[row] >= least && column[row] < end_of(row))) {
      throw new DamagedData({wanted: "in its range", place: `${name}[${row}]`})
    }
  }
}
