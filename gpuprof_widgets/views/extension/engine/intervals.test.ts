import assert from "node:assert/strict"
import {test} from "node:test"

import {at_time, covered, drawn_steps, fullest_stretch, union} from "./intervals"
import {covered as covered_by_oracle, rows_of_track} from "./testing/oracles"
import {random_integers, random_store, SEEDS} from "./testing/traces"

test("a union covers the moments at which any slice is open", () => {
  for (const seed of SEEDS) {
    const store = random_store(seed)
    const rows = rows_of_track(store, 0)
    const intervals = union(store.ts, store.end, rows)
    const below = random_integers(seed)
    for (let i = 0; i < 10; i++) {
      const start = below(190)
      const end = start + below(50)
      assert.equal(covered(intervals, start, end), covered_by_oracle(store, rows, {start, end}))
    }
  }
})

const CURVE = {ts: Float64Array.of(10, 20, 21), value: Float64Array.of(3, 9, 1)}

test("a value holds until the next change", () => {
  assert.deepEqual([9, 10, 19, 20, 21, 1000].map((time) => at_time(CURVE, time)), [null, 3, 3, 9, 1, 1])
})

test("a peak narrower than a pixel is still drawn", () => {
  const {least, most} = drawn_steps(CURVE, 0, 40, 4)
  assert.deepEqual([...least], [NaN, 3, 1, 1])
  assert.deepEqual([...most], [NaN, 3, 9, 1])
})

for (const seed of SEEDS.slice(0, 10)) {
  test(`each pixel holds what looking at every nanosecond finds (${seed})`, () => {
    const below = random_integers(seed)
    const ts = Float64Array.from({length: 20}, () => below(100)).sort()
    const curve = {ts: Float64Array.from(new Set(ts)), value: Float64Array.from(new Set(ts), () => below(9) - 3)}
    const {least, most} = drawn_steps(curve, 0, 100, 10)
    for (let x = 0; x < 10; x++) {
      const seen = Array.from({length: 10}, (_, i) => at_time(curve, 10*x + i)).filter((value) => value != null)
      assert.equal(least[x], seen.length == 0 ? NaN : Math.min(...seen))
      assert.equal(most[x], seen.length == 0 ? NaN : Math.max(...seen))
    }
  })
}

test("the fullest stretch holds the most places, the first of equally full ones", () => {
  assert.deepEqual(fullest_stretch([0, 10, 50, 55, 60, 200], 15), [50, 60])
  assert.deepEqual(fullest_stretch([0, 10, 50, 60], 15), [0, 10])
  assert.deepEqual(fullest_stretch([7], 0), [7, 7])
})
