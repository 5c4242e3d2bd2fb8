import assert from "node:assert/strict"
import {test} from "node:test"

import type {CallNode} from "./header"
import {match_text, match_totals, matching_calls, search, sum_of_totals, type MatchTotals} from "./search"
import {store_of, RANDOM_STORES} from "./testing/traces"
import {covered} from "./testing/oracles"
import type {Store} from "./store"

const TESTS = [/f[01]/, /[fk]2/, /k/, /./, /nothing/].map((pattern) => (name: string) => pattern.test(name))
const WINDOWS = [{start: 0, end: 200}, {start: 31, end: 90}, {start: 90, end: 91}, {start: 40, end: 40}]

function matching_rows(store: Store, test: (name: string) => boolean): number[] {
  return Array.from({length: store.rows}, (_, row) => row).filter((row) => test(store.name(row)))
}

test("a search finds every slice with a matching name, whatever its category", () => {
  for (const store of RANDOM_STORES) {
    for (const matches of TESTS) {
      const {rows, labels} = search(store, matches)
      assert.deepEqual(Array.from(rows), matching_rows(store, matches))
      assert.deepEqual(labels, new Set(Array.from(rows, (row) => store.label[row])))
    }
  }
})

test("the time of matches is the moments at which any of them is open, by side", () => {
  for (const store of RANDOM_STORES) {
    for (const matches of TESTS) {
      for (const window of WINDOWS) {
        const rows = matching_rows(store, matches)
        const inside = rows.filter((row) => store.is_inside(row, window))
        const [cpu, gpu] = [0, 1].map((track) => rows.filter((row) => store.track[row] == track))
        assert.deepEqual(match_totals(store, Int32Array.from(rows), window), {
          names: new Set(inside.map((row) => store.name(row))), events: inside.length, bars: inside.length,
          cpu: cpu.length == 0 ? null : covered(store, cpu, window), gpu: gpu.length == 0 ? null : covered(store, gpu, window),
        })
      }
    }
  }
})

test("a thread's Python frames and ops count once, its streams one by one", () => {
  const rows = [
    {name: "forward", ts: 10, dur: 30, category: "module"}, {name: "model.py(3): forward", ts: 5, dur: 20, track: 1},
    {name: "forward_kernel", ts: 10, dur: 20, track: 2}, {name: "forward_kernel", ts: 20, dur: 20, track: 3}, {name: "add", ts: 50, dur: 9},
  ]
  const store = store_of(rows, {kinds: ["cpu", "python", "gpu", "gpu"]})
  const {rows: found} = search(store, (name) => name.includes("forward"))
  const {cpu, gpu} = match_totals(store, found, store.whole)
  assert.deepEqual([cpu, gpu], [35, 40])
})

test("steps are found by their own name and by the one that tables show", () => {
  const store = store_of([{name: "ProfilerStep#3", ts: 0, dur: 5}, {name: "ProfilerStep#4", ts: 5, dur: 5}])
  const found = (text: string): number => search(store, (name) => name.includes(text)).rows.length
  assert.deepEqual([found("Step#3"), found("ProfilerStep*"), found("ProfilerStep")], [1, 2, 2])
})

test("a bar that stands for several events counts as many", () => {
  const store = store_of([{name: "add", ts: 0, dur: 5, count: 40}, {name: "add", ts: 7, dur: 5}])
  const totals = match_totals(store, search(store, () => true).rows, store.whole)
  assert.equal(match_text(null, totals, 0), "41 events of 1 name, drawn as 2 bars · CPU 10\u00a0ns")
})

test("totals of several traces and of a range read as one sentence", () => {
  const a: MatchTotals = {names: new Set(["add", "mm"]), events: 1000, bars: 1000, cpu: 2e6, gpu: null}
  const b: MatchTotals = {names: new Set(["add"]), events: 92, bars: 92, cpu: 1e6, gpu: 5e6}
  const both = sum_of_totals([a, b])
  assert.equal(match_text(null, both, 0), "1,092 events of 2 names · CPU 3.00\u00a0ms · GPU 5.00\u00a0ms")
  assert.equal(match_text(b, both, 0), "92 of 1,092 events in the range · CPU 1.00\u00a0ms · GPU 5.00\u00a0ms")
  const none: MatchTotals = {names: new Set(), events: 0, bars: 0, cpu: null, gpu: null}
  assert.equal(match_text(null, none, 0), "No name matches")
  assert.equal(match_text(null, none, 2), "2 functions, not on the timeline")
  assert.equal(match_text(b, both, 1), "92 of 1,092 events in the range · CPU 1.00\u00a0ms · GPU 5.00\u00a0ms · 1 function, not on the timeline")
})

test("cProfile's functions are found, its root is none", () => {
  const call = (parent: number, name: string): CallNode => ({parent, name, calls: 1, total_ns: 1, self_ns: 1, library: false})
  const store = store_of([], {calls: [call(-1, "all"), call(0, "load"), call(1, "read"), call(0, "read")]})
  assert.deepEqual(matching_calls(store, (name) => /a/.test(name)), new Set(["load", "read"]))
  assert.deepEqual(matching_calls(store_of([]), () => true), new Set())
})

test("a recorded function is found by its frame's name and by that of tables, and not once more as one of cProfile", () => {
  const calls: CallNode[] = [{parent: -1, name: "all", calls: 1, total_ns: 5, self_ns: 0, library: false},
    {parent: 0, name: "train.py:3(step)", calls: 1, total_ns: 5, self_ns: 5, library: false}]
  const store = store_of([
    {name: "/home/me/train.py(3): step", ts: 0, dur: 5, track: 1}, {name: "C:\\me\\train.py(3): step", ts: 5, dur: 5, track: 1},
  ], {kinds: ["cpu", "python"], calls})
  for (const text of ["train.py:3(step)", "train.py(3): step"]) {
    assert.equal(search(store, (name) => name.includes(text)).rows.length, 2, text)
  }
  assert.deepEqual(matching_calls(store, () => true), new Set())
})
