import assert from "node:assert/strict"
import {test} from "node:test"

import {Intervals} from "./intervals"
import {covered, rows_of_track} from "./testing/oracles"
import {random, random_store, SEEDS} from "./testing/traces"

test("a union covers the moments at which any slice is open", () => {
  for (const seed of SEEDS) {
    const store = random_store(seed)
    const rows = rows_of_track(store, 0)
    const union = Intervals.union(store.ts, store.end, rows)
    const next = random(seed)
    for (let i = 0; i < 10; i++) {
      const start = Math.floor(next()*190)
      const end = start + Math.floor(next()*50)
      assert.equal(union.covered(start, end), covered(store, rows, {start, end}))
    }
  }
})
