import assert from "node:assert/strict"
import {test} from "node:test"

import type {Cell, Unit} from "./header"
import {fitted, is_empty, sorted, to_csv, widths_of, type Column, type Measure} from "./table"

function column(unit: Unit): Column<Cell> {
  return {...NAMED, unit, value: (cell) => cell}
}

const NAMED = {key: "key", label: "Label"}

test("rows are sorted by value, those without one last, equal ones as they stand", () => {
  assert.deepEqual(sorted([2, null, 10, 1], column("ns"), true), [10, 2, 1, null])
  assert.deepEqual(sorted([2, null, 10, 1], column("ns"), false), [1, 2, 10, null])
  const rows = [{name: "b", ns: 1}, {name: "a", ns: 1}, {name: "c", ns: 2}]
  const by_time: Column<{ns: number}> = {...NAMED, unit: "ns", value: ({ns}) => ns}
  for (const descending of [true, false]) {
    const equal = sorted(rows, by_time, descending).filter(({ns}) => ns == 1)
    assert.deepEqual(equal.map(({name}) => name), ["b", "a"])
  }
})

test("changes are sorted by their size, names as people count", () => {
  assert.deepEqual(sorted([1, -5, 3, 0], column("change"), true), [-5, 3, 1, 0])
  assert.deepEqual(sorted(["10: b", "9: a", "B", "a"], column("text"), false), ["9: a", "10: b", "a", "B"])
})

/** Every letter is ten pixels wide, one of code eleven, one of a heading twelve. */
const measure: Measure = (text, font) => text.length * {text: 10, code: 11, heading: 12}[font]

test("columns share the room by need, the first of them before others, and keep what is legible", () => {
  const name = {natural: 900, least: 300, weight: 2}
  const number = {natural: 120, least: 100, weight: 1}
  const text = {natural: 400, least: 140, weight: 1}
  const sum = (widths: number[]): number => widths.reduce((all, width) => all + width, 0)
  assert.deepEqual(fitted([name, number, text], 2000), [900, 120, 400])
  for (let room = 540; room < 1420; room++) {
    const widths = fitted([name, number, text], room)
    assert.ok(sum(widths) <= room && sum(widths) > room - 3, `${String(widths)} of ${room}`)
    assert.ok(widths.every((width, at) => width >= [name, number, text][at].least))
  }
  assert.deepEqual(fitted([name, number, text], 1020), [600, 120, 300])
  const [, , needs_little] = fitted([name, number, {...text, natural: 150}], 1020)
  assert.equal(needs_little, 150)
  assert.deepEqual(fitted([name, number, text], 539), [269, 100, 140])
})

test("a column is as wide as the widest of its cells in any range", () => {
  const width = (of: Partial<Column<Cell>>, rows: Cell[]): number => widths_of([{...column("ns"), label: "", ...of}], rows, measure)[0].natural
  assert.equal(width({}, [1e6, 2e6]), 10 * "88.8 ms".length + 18)
  assert.equal(width({}, [5e9]), 10 * "88.8 ms".length + 18, "a part of 5 s may be 50.0 ms")
  assert.equal(width({unit: "count"}, [1, 12_345_678]), 10 * "12,345,678".length + 18)
  assert.equal(width({unit: "text"}, ["a".repeat(40), null]), 400 + 18)
  assert.equal(width({unit: "text", indent: 40, is_code: true}, ["a".repeat(40)]), 440 + 40 + 18)
  assert.ok(width({share: () => 1}, [1e6]) >= width({}, [1e6]) + 10 * "<0.1 %".length)
  assert.equal(width({text: () => "a text of its own"}, [1]), 10 * "a text of its own".length + 18)
})

test("a heading is never cut: it takes one line, or two at a word where there is little room", () => {
  const [cells, name] = widths_of([column("count"), {...column("text"), label: "CPU backward"}], ["1"], measure)
  assert.equal(cells.natural, 12 * "Label".length + 30)
  assert.equal(name.natural, 12 * "CPU backward".length + 30)
  assert.equal(name.least, 12 * "backward".length + 30)
})

test("the first text keeps thirty letters, others fourteen, and none more than it needs", () => {
  const long = "a".repeat(200)
  const texts = [column("text"), column("text"), {...column("text"), min_width: 320}]
  assert.deepEqual(widths_of(texts, [long], measure).map(({least}) => least), [318, 158, 320])
  assert.deepEqual(widths_of(texts, ["a".repeat(9)], measure).map(({least}) => least), [108, 108, 320])
})

test("a column is empty where no row has anything in it", () => {
  assert.ok(is_empty(column("bytes"), [0, null]))
  assert.ok(is_empty(column("text"), ["", null]))
  assert.ok(!is_empty(column("bytes"), [0, 1]))
  assert.ok(!is_empty(column("ratio"), [0]))
})

test("CSV quotes what needs it and disarms formulas", () => {
  const text = to_csv(["name", "calls"], [['say "hi", you', 1], ["=1+1", -2], ["@x", 0.5], ["＝1", 1], ["'=1", 1], ["\n=1", 1], ["a\nb", 3]])
  assert.equal(text, 'name,calls\r\n"say ""hi"", you",1\r\n\'=1+1,-2\r\n\'@x,0.5\r\n\'＝1,1\r\n\'\'=1,1\r\n"\'\n=1",1\r\n"a\nb",3\r\n')
})
