import assert from "node:assert/strict"
import {test} from "node:test"

import type {Columns} from "./columns"
import type {Header} from "./header"
import {check_columns, check_header} from "./header_check"
import {DamagedData} from "./shapes"

/** Three rows of two labels and one shape. */
const HEADER = {rows: 3, label: [[0, 0], [1, 0]], shapes: ["[2]"]} as unknown as Header

function columns_of(changed: Record<string, number[]>): Columns {
  const sound = {ts: [0, 1, 2], dur: [9, 1, 1], label: [0, 1, 1]}
  return new Map(Object.entries({...sound, ...changed}).map(([name, values]) => [name, Float64Array.from(values)]))
}

test("sound columns are taken", () => {
  const sound: Record<string, number[]>[] = [
    {}, {owner: [-1, 0, 2]}, {parent: [0, 1, 2]}, {shape: [0, 1, 1]}, {bytes: [-7, 0, 2 ** 60]},
  ]
  sound.forEach((changed) => check_columns(HEADER, columns_of(changed)))
})

const DAMAGED: Record<string, Record<string, number[]>> = {
  "a label that is not there": {label: [0, 1, 2]},
  "a label below all": {label: [0, -1, 1]},
  "an owner that is not there": {owner: [-1, 0, 3]},
  "an op far away": {op: [-1, 0, 2 ** 31]},
  "a forward op that is no number": {forward: [-1, NaN, 0]},
  "a parent above the first row": {parent: [0, 2, 0]},
  "a parent below its child": {parent: [0, -1, 0]},
  "a parent whose distance wraps around": {parent: [0, 1, 2 ** 32 - 1]},
  "a shape that is not there": {shape: [0, 1, 2]},
  "fewer starts than rows": {ts: [0, 1]},
}

for (const [what, changed] of Object.entries(DAMAGED)) {
  test(`${what} is refused`, () => {
    assert.throws(() => check_columns(HEADER, columns_of(changed)), DamagedData)
  })
}

const CELL = {name: "Cell [3]", first: 1, text: []}
const LINES = {
  cells: [CELL], lines: [[0, 2, "for x in data:"], [0, 3, "f(x)"]], labels: [[1, 1, 0]], waits: [], copy_waits: [], limit: 10_000,
  incomplete: [[0, 0, [1]], [1, 1, []]],
}

function header_of(lines: object): Header {
  return {
    version: 1, tick_ns: 1, start_ns: 0, end_ns: 9, rows: 0, names: ["a"], categories: ["b"], label: [[0, 0], [0, 0]], families: [], library: [],
    unlisted: [], shapes: [], tracks: [], columns: [], calls: null, module_classes: {}, memory: null, arrays: [], panels: [], notes: [],
    lines: {...LINES, ...lines} as unknown as Header["lines"],
  }
}

test("sound lines are taken", () => check_header(header_of({}), 0))

const DAMAGED_LINES: Record<string, object> = {
  "a line of a cell that is not there": {lines: [[1, 2, ""], [0, 3, ""]]},
  "a label of a line that is not there": {labels: [[1, 2, 0]]},
  "an incomplete line that is not there": {incomplete: [[2, 0, []]]},
  "an incomplete line that is text": {incomplete: [["__proto__", 0, []]]},
  "further runs of a line that is not there": {incomplete: [[0, 0, [2]]]},
  "no list of incomplete lines": {incomplete: null},
  "a limit that is text": {limit: "10,000"},
}

for (const [what, changed] of Object.entries(DAMAGED_LINES)) {
  test(`${what} is refused`, () => {
    assert.throws(() => check_header(header_of(changed), 0), DamagedData)
  })
}
