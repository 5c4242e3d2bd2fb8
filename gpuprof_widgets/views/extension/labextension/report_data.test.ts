import assert from "node:assert/strict"
import {test} from "node:test"

import {DAMAGED, MIME_TYPE, MOST_LETTERS, NEWER, report_of, script_of} from "./report_data"

const DATA = {uid: "0123456789ab", explorer: false, page: "H4sIAAAAAAAA/+=="}

function script_with(data: unknown): string {
  return `((report) => {\n  show(report)\n})(\n${JSON.stringify(data)}\n)`
}

function bundle_of(script: unknown, item: unknown = {format: 1}): Record<string, unknown> {
  return {[MIME_TYPE]: item, "application/javascript": script, "text/plain": ""}
}

test("the report is what the last line but one of the script says", () => {
  assert.deepEqual(report_of(bundle_of(script_with(DATA))), DATA)
  assert.deepEqual(report_of(bundle_of(`${script_with(DATA)}\n`)), DATA)
})

test("a notebook's file may hold the script in lines", () => {
  const lines = script_with(DATA).split(/(?<=\n)/)
  assert.equal(script_of(bundle_of(lines)), script_with(DATA))
  assert.deepEqual(report_of(bundle_of(lines)), DATA)
})

test("nothing but three fields is taken", () => {
  const more = {...DATA, bokeh: "1.0", version: "x", runtime: {bokeh: "", extension: ""}, document: "", place: "body"}
  assert.deepEqual(report_of(bundle_of(script_with(more))), DATA)
})

test("an explorer's report has the number of its profile", () => {
  assert.deepEqual(report_of(bundle_of(script_with({...DATA, uid: "0123456789ab-12"}))), {...DATA, uid: "0123456789ab-12"})
})

test("a newer format is named", () => {
  assert.equal(report_of(bundle_of(script_with(DATA), {format: 2})), NEWER)
})

test("any other format is damage", () => {
  for (const item of [null, 1, "1", [], {}, {format: "1"}, {format: 0}, {format: 0.5}, {format: null}]) {
    assert.equal(report_of(bundle_of(script_with(DATA), item)), DAMAGED, JSON.stringify(item))
  }
  assert.equal(report_of({"application/javascript": script_with(DATA)}), DAMAGED)
})

test("a script without the data is damage", () => {
  for (const script of [undefined, null, 5, "", "\n", "\n\n", JSON.stringify(DATA), "f(\n{\n)", `${script_with(DATA)}\nmore()`, ["f(\n", 5, "\n)"], {}]) {
    assert.equal(report_of(bundle_of(script)), DAMAGED, JSON.stringify(script))
  }
  for (const data of [null, 5, "text", [], {}]) {
    assert.equal(report_of(bundle_of(script_with(data))), DAMAGED, JSON.stringify(data))
  }
})

test("a field of any other kind is damage", () => {
  const wrong = [
    ...[undefined, null, 5, "", "0123456789AB", "0123456789ab-", "0123456789ab\n", "x0123456789ab", "0123456789ab-1-2", ["0123456789ab"]]
      .map((uid) => ({...DATA, uid})),
    ...[undefined, null, 0, "true"].map((explorer) => ({...DATA, explorer})),
    ...[undefined, null, 5, "", "<b>", "AA\nAA", "AA-_", ["AAAA"]].map((page) => ({...DATA, page})),
  ]
  for (const data of wrong) {
    assert.equal(report_of(bundle_of(script_with(data))), DAMAGED, JSON.stringify(data))
  }
})

test("fields that every object inherits are none of the data's", () => {
  assert.equal(report_of(bundle_of(`f(\n{"__proto__": ${JSON.stringify(DATA)}}\n)`)), DAMAGED)
})

test("the data's length is bounded", () => {
  const page = "A".repeat(MOST_LETTERS)
  assert.notEqual(report_of(bundle_of(script_with({...DATA, page}))), DAMAGED)
  assert.equal(report_of(bundle_of(script_with({...DATA, page: `${page}A`}))), DAMAGED)
})
