import assert from "node:assert/strict"
import {test} from "node:test"

import type {Header} from "./header"
import {line_instances, line_of_row, line_owners, line_rows, sign_of, why_inexact, type LineRow} from "./lines"
import {covered, rows_of_track, self_times} from "./testing/oracles"
import {random_integers, row_named, SEEDS, store_of, type Row} from "./testing/traces"

const HEAD = "2: for x in data:"
const FORWARD = "3: y = model(x)"
const BACKWARD = "4: loss.backward()"
const NAMES = [HEAD, FORWARD, BACKWARD]

/** Labels of lines are those whose name begins with the number; calls that wait are named so. */
function line_table(label: Header["label"], names: string[], categories: string[]): Header["lines"] {
  const of_category = (wanted: string): [number, string][] => label.flatMap(([name, category], i) =>
    categories[category] == wanted ? [[i, names[name]] as [number, string]] : [])
  const lines = of_category("cell_line").map(([at, name]): [number, number, 0 | 1] => [at, NAMES.indexOf(name), 0])
  return {
    cells: [{name: "Cell [3]", first: 1, text: []}], lines: NAMES.map((name) => [0, parseInt(name, 10), name.slice(3)]), labels: lines,
    waits: of_category("cuda_runtime").flatMap(([at, name]) => name == "wait" ? [at] : []),
    copy_waits: of_category("cuda_runtime").flatMap(([at, name]) => name == "copy" ? [at] : []),
    limit: 10_000, incomplete: [],
  }
}

function line(name: string, ts: number, dur: number, track: number = 0): Row {
  return {name, ts, dur, track, category: "cell_line"}
}

const STEP = store_of([
  line(HEAD, 0, 100),
  line(FORWARD, 5, 25),
  line(BACKWARD, 40, 50),
  {name: "aten::mm", ts: 10, dur: 10},
  {name: "launch", ts: 12, dur: 3, category: "cuda_runtime"},
  {name: "MmBackward0", ts: 45, dur: 20, track: 1, forward: 3},
  {name: "launch", ts: 50, dur: 4, category: "cuda_runtime", track: 1},
  {name: "wait", ts: 70, dur: 15, category: "cuda_runtime"},
  {name: "gemm", ts: 20, dur: 30, track: 2, owner: 4},
  {name: "gemm_backward", ts: 60, dur: 9, track: 2, owner: 6},
  {name: "copy", ts: 22, dur: 6, category: "cuda_runtime"},
  {name: "Memcpy", ts: 23, dur: 4, track: 2, owner: 10, category: "gpu_memcpy"},
], {kinds: ["cpu", "cpu", "gpu"], unlisted: NAMES, lines: line_table})

function numbers(rows: LineRow[], ...keys: (keyof LineRow)[]): unknown[][] {
  return rows.map((row) => keys.map((key) => row[key]))
}

test("a line has its own time, GPU work and waits, and those of the backward pass", () => {
  const rows = line_rows(STEP, STEP.whole)
  assert.deepEqual(numbers(rows, "line", "calls", "wall", "self", "cpu_self"), [[2, 1, 100, 25, 0], [3, 1, 25, 25, 16], [4, 1, 50, 50, 35]])
  assert.deepEqual(numbers(rows, "device", "backward_device", "backward_cpu", "wait"), [[0, 0, 0, 0], [34, 9, 20, 6], [9, 0, 0, 15]])
})

test("a range after the lines still knows who launched what runs in it, and for which forward line", () => {
  const rows = line_rows(STEP, {start: 62, end: 68})
  assert.deepEqual(numbers(rows, "calls", "wall", "device", "backward_device"), [[1, 6, 0, 0], [0, 0, 0, 6], [1, 6, 6, 0]])
})

test("a call waits for its copy only in a range in which the copy ran", () => {
  assert.equal(line_rows(STEP, {start: 22, end: 30})[1].wait, 6)
  assert.equal(line_rows(STEP, {start: 27, end: 30})[1].wait, 0)
})

test("a line and its events find each other", () => {
  assert.equal(line_of_row(STEP, row_named(STEP, "gemm")), 1)
  assert.equal(line_of_row(STEP, row_named(STEP, "gemm_backward")), 2)
  assert.deepEqual(Array.from(line_instances(STEP, 1)), [row_named(STEP, FORWARD)])
  const {line: ran, forward} = line_owners(STEP, row_named(STEP, "MmBackward0"))
  assert.deepEqual([STEP.name(ran), STEP.name(forward)], [BACKWARD, FORWARD])
})

test("numbers of lines that ran too often are at least, those of what they count for at most", () => {
  const store = store_of([line(HEAD, 0, 100), line(FORWARD, 5, 25), line(BACKWARD, 40, 50)], {
    unlisted: NAMES, lines: (...made) => ({...line_table(...made)!, incomplete: [[0, 0, [1, 2]], [1, 1, []], [2, 1, [1]]]}),
  })
  const rows = line_rows(store, store.whole)
  const signs = (value: "calls" | "wall" | "self" | "device"): string[] => rows.map((row) => sign_of(row, value))
  assert.deepEqual([signs("calls"), signs("wall")], [["", "≥", "≥"], ["", "≥", "≥"]])
  assert.deepEqual([signs("self"), signs("device")], [["≤", "≥", "≈"], ["≤", "≥", "≈"]])
  const runs = "Runs after the first 10,000 were not recorded one by one; their time counts for the line around them."
  const words = rows.map((row) => why_inexact(store.header.lines!, row))
  assert.deepEqual(words, ["Includes further runs of lines 3, 4.", runs, `${runs} Includes further runs of line 3.`])
  const [head] = line_rows(STEP, STEP.whole)
  assert.equal(sign_of(head, "self"), "")
})

test("lines of another cell are named with it, of many only some, and a limit that is not known is not named", () => {
  const table = STEP.header.lines!
  const others = [0, 1, 2, 0, 1, 2]
  const row = {...line_rows(STEP, STEP.whole)[0], is_cut: true, others}
  const two = {...table, limit: 0, cells: [...table.cells, {name: "helpers.py", first: 1, text: []}], lines: [[1, 2, ""], ...table.lines.slice(1)]}
  assert.equal(why_inexact(two as typeof table, row),
    "Later runs were not recorded one by one; their time counts for the line around them. " +
    "Includes further runs of lines 2 of helpers.py, 3, 4, 2 of helpers.py, 3 and others.")
})

test("without lines there are no rows", () => {
  assert.deepEqual(line_rows(store_of([{name: "aten::mm", ts: 0, dur: 9}]), {start: 0, end: 9}), [])
})

for (const seed of SEEDS.slice(0, 10)) {
  test(`random lines ${seed}: times of a range are counted moments`, () => {
    const below = random_integers(seed)
    const rows = Array.from({length: 20}, () => line(NAMES[below(3)], below(150), below(40), below(2)))
    const store = store_of(rows, {kinds: ["cpu", "cpu"], end_ns: 200, unlisted: NAMES, lines: line_table})
    const window = {start: below(80), end: 80 + below(120)}
    const self = [0, 1].map((track) => self_times(store, rows_of_track(store, track), window))
    NAMES.forEach((name, index) => {
      const row = line_rows(store, window)[index]
      const instances = Array.from(line_instances(store, index))
      assert.equal(row.self, instances.reduce((sum, at) => sum + (self[store.track[at]].get(at) ?? 0), 0), name)
      assert.equal(row.wall, covered(store, instances, window), name)
    })
  })
}
