import assert from "node:assert/strict"
import {test} from "node:test"

import {density} from "./density"
import {covered, rows_of_track} from "./testing/oracles"
import {random, random_store, SEEDS, store_of} from "./testing/traces"

test("a track is busy whenever any slice is open", () => {
  for (const seed of SEEDS) {
    const store = random_store(seed)
    const next = random(seed)
    const start = Math.floor(next()*150)
    const end = start + Math.floor(next()*50)
    assert.equal(store.track_busy(0).covered(start, end), covered(store, rows_of_track(store, 0), {start, end}))
  }
})

test("the minimap's bins hold the busy share of their time", () => {
  for (const seed of SEEDS) {
    const store = random_store(seed)
    const bins = density(store, 0, {start: 0, end: 200}, 8)
    bins.forEach((share, i) => {
      const bin = {start: 25*i, end: 25*i + 25}
      assert.ok(Math.abs(share - covered(store, rows_of_track(store, 0), bin)/25) < 1e-6)
    })
  }
})

test("a window without length has no busy time", () => {
  const store = store_of([{name: "op", ts: 0, dur: 10}])
  assert.deepEqual(Array.from(density(store, 0, {start: 5, end: 5}, 2)), [0, 0])
})
