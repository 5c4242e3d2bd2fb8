import assert from "node:assert/strict"
import {test} from "node:test"

import type {Cell, Unit} from "./header"
import {fitted, natural_width, sorted, to_csv, type Column} from "./table"

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

test("texts give way as far as they are legible, then the table scrolls", () => {
  const columns = [column("text"), column("ns"), column("text")]
  const sum = (widths: number[]): number => widths.reduce((all, width) => all + width, 0)
  assert.deepEqual(fitted([300, 100, 300], columns, 900), [300, 100, 300])
  for (let room = 350; room < 700; room++) {
    const widths = fitted([300, 100, 300], columns, room)
    assert.ok(sum(widths) <= room && sum(widths) > room - 3)
    assert.ok(widths[0] >= Math.min(180, room / 2) && widths[1] == 100 && widths[2] >= 70)
  }
  assert.deepEqual(fitted([300, 100, 300], columns, 339), [169.5, 100, 200])
  assert.deepEqual(fitted([90, 100, 80], columns, 10), [63.5, 100, 80])
})

test("a column is as wide as its heading and its texts, a number as its unit", () => {
  const text = column("text")
  assert.equal(natural_width(text, []), natural_width(text, ["Label"]))
  assert.ok(natural_width(text, ["a".repeat(20)]) > natural_width(text, ["a".repeat(19)]))
  assert.equal(natural_width(text, ["a".repeat(200)]), natural_width(text, ["a".repeat(5_000)]))
  assert.ok(natural_width({...text, indent: 40}, ["a".repeat(20)]) == natural_width(text, ["a".repeat(20)]) + 40)
  assert.equal(natural_width(column("ns"), [1]), natural_width(column("ns"), [1e12]))
  assert.ok(natural_width({...column("ns"), share: () => 1}, []) > natural_width(column("ns"), []))
})

test("CSV quotes what needs it and disarms formulas", () => {
  const text = to_csv(["name", "calls"], [['say "hi", you', 1], ["=1+1", -2], ["@x", 0.5], ["＝1", 1], ["'=1", 1], ["\n=1", 1], ["a\nb", 3]])
  assert.equal(text, 'name,calls\r\n"say ""hi"", you",1\r\n\'=1+1,-2\r\n\'@x,0.5\r\n\'＝1,1\r\n\'\'=1,1\r\n"\'\n=1",1\r\n"a\nb",3\r\n')
})
