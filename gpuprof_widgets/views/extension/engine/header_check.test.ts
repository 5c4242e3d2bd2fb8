import assert from "node:assert/strict"
import {test} from "node:test"

import type {Columns} from "./decode"
import type {Header} from "./header"
import {check_columns} from "./header_check"
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
