/** Whether a header fits the bytes behind it, and can be read without end: a file may have been written to harm. */

import type {Header} from "./header"
import {anything, DamagedData, either, fields, flag, list, nothing, number, one_of, text, tuple, values, whole, type Check} from "./shapes"

const MOST_ROWS = 2 ** 27
const MOST_TRACKS = 2 ** 16

const moment = whole(-(2 ** 53), 2 ** 53)
const numbers = list(number)
const texts = list(text)
const cell = either(text, number, nothing)

/** A table, see views/table_renderers.py. */
export const table = {
  title: text,
  sort: text,
  columns: list(tuple(text, text, text, text, text)),
  length: whole(0, MOST_ROWS),
  values: list(list(cell)),
}

/** Throws a `DamagedData` where a header is not what header.ts says, or needs more than `byte_count` bytes behind it. */
export function check_header(header: Header, byte_count: number): void {
  fields({rows: whole(0, MOST_ROWS), names: texts, categories: texts, label: list(anything), arrays: list(anything)})(header)
  const {rows, names, categories, label, arrays} = header
  const position = whole(0, arrays.length)
  const row = whole(-1, Math.max(rows, MOST_ROWS))
  fields({
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
      lane: moment,
      device: moment,
      stream: moment,
      rows: whole(0, rows + 1),
    }), MOST_TRACKS),
    columns: list(fields({name: text, width: whole(0, 9), encoding: one_of("plain", "delta", "link", "signed")}), 100),
    arrays: list(fields({length: whole(0, MOST_ROWS), width: whole(0, 9), encoding: one_of("plain", "signed", "steps", "float")})),
    calls: either(nothing, list(fields({parent: whole(-1), name: text, calls: number, total_ns: number, self_ns: number, library: flag}))),
    lines: either(nothing, fields({
      cells: list(fields({name: text, first: whole(), text: texts})),
      lines: list(tuple(whole(0), whole(), text)),
      labels: list(tuple(whole(0, label.length), whole(0), whole(0, 2))),
      waits: list(whole(0)),
      copy_waits: list(whole(0)),
    })),
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
    panels: list(panel_check(position)),
    notes: texts,
  })(header)
  check_calls(header)
  check_sizes(header, byte_count)
}

const BLOCK_NUMBERS = ["device", "start", "dur", "bytes", "category", "op_name", "module_name", "line_name", "tensor"]

function panel_check(position: Check): Check {
  const events = fields({of: values(position)}, {
    ...Object.fromEntries(["count", "group", "start", "dur", "row", "track", "frames"].map((name) => [name, position])),
    tracks: list(whole(0, MOST_TRACKS)),
  })
  return fields({
    ...table,
    name: text,
    note: text,
    cut: flag,
    events: either(nothing, events),
    curves: list(fields({name: text, unit: text, ts: position, value: position, exact: flag})),
    points: either(nothing, fields({x: text, y: text, size: text, lines: list(tuple(numbers, numbers, text))})),
    bars: either(nothing, fields({group: text, part: text, value: text})),
  })
}

/** A parent stands before its children, so that every way up ends. */
function check_calls({calls}: Header): void {
  const wrong = calls?.findIndex(({parent}, i) => parent >= i) ?? -1
  if (wrong >= 0) {
    throw new DamagedData("after its parent", `.calls[${wrong}]`)
  }
}

function check_sizes({rows, tracks, columns, arrays}: Header, byte_count: number): void {
  const needed = columns.reduce((sum, {width}) => sum + width * rows, 0) + arrays.reduce((sum, {width, length}) => sum + width * length, 0)
  if (needed > byte_count) {
    throw new DamagedData(`${needed} bytes long, as its header says`)
  }
  if (tracks.reduce((sum, track) => sum + track.rows, 0) != rows) {
    throw new DamagedData(`of ${rows} rows`, ".tracks")
  }
}
