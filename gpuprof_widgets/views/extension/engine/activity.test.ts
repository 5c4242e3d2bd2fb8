import assert from "node:assert/strict"
import {test} from "node:test"

import {activity} from "./activity"
import {random_store, SEEDS, store_of} from "./testing/traces"

test("the share of each pixel in which a track runs, of several tracks the most", () => {
  const store = store_of([
    {name: "op", ts: 0, dur: 15}, {name: "inner", ts: 5, dur: 5}, {name: "op", ts: 30, dur: 10}, {name: "kernel", ts: 12, dur: 3, track: 1},
  ], {kinds: ["cpu", "gpu"]})
  assert.deepEqual(activity(store, "cpu", {start: 0, end: 40}, 4), Float32Array.of(1, 0.5, 0, 1))
  assert.deepEqual(activity(store, "gpu", {start: 0, end: 40}, 4), Float32Array.of(0, 0.3, 0, 0))
  assert.equal(activity(store, "copy", {start: 0, end: 40}, 4), null)
})

test("what lies around all ops makes no track busy", () => {
  const store = store_of([{name: "step", ts: 0, dur: 40, category: "user_annotation"}, {name: "op", ts: 10, dur: 10}])
  assert.deepEqual(activity(store, "cpu", {start: 0, end: 40}, 4), Float32Array.of(0, 1, 0, 0))
})

test("Python is as busy as its calls are deep", () => {
  const store = store_of([
    {name: "main", ts: 0, dur: 40, category: "python_function"}, {name: "step", ts: 10, dur: 10, category: "python_function"},
  ], {kinds: ["python"]})
  assert.deepEqual(activity(store, "python", {start: 0, end: 40}, 4), Float32Array.of(0.5, 1, 0.5, 0.5))
})

test("ops of a track cover what its pixels add up to", () => {
  for (const seed of SEEDS) {
    const store = random_store(seed)
    const {whole} = store
    const shares = activity(store, "cpu", whole, 20)!
    const is_open = (tick: number): boolean => store.rows_of_track(0).some((row) => store.ts[row] <= tick && tick < store.end[row])
    const open = Array.from({length: whole.end - whole.start}, (_, i) => whole.start + i).filter(is_open).length
    const sum = shares.reduce((all, share) => all + share, 0)*(whole.end - whole.start)/20
    assert.ok(Math.abs(sum - open) < 1e-3)
  }
})
