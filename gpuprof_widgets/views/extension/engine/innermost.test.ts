import assert from "node:assert/strict"
import {test} from "node:test"

import {innermost} from "./innermost"
import {SEEDS, random} from "./testing/traces"

type Slice = {start: number, end: number}

/** One track of these slices, which stand by their starts. */
function track_of(slices: Slice[]): Parameters<typeof innermost>[0] {
  return {
    ts: Float64Array.from(slices, ({start}) => start), end: Float64Array.from(slices, ({end}) => end),
    first_row: Uint32Array.of(0, slices.length),
  }
}

/** The slice of each ns up to 60, -1 for none, as the stretches say. */
function told(slices: Slice[]): number[] {
  const by_ns = new Array<number>(60).fill(-1)
  for (const {slice, start, end} of innermost(track_of(slices), 0)) {
    assert.ok(end > start)
    for (let ns = start; ns < end; ns++) {
      assert.equal(by_ns[ns], -1)
      by_ns[ns] = slice
    }
  }
  return by_ns
}

test("a caller runs before, between and after what it calls", () => {
  assert.deepEqual(innermost(track_of([{start: 0, end: 20}, {start: 5, end: 8}, {start: 8, end: 8}, {start: 30, end: 31}]), 0), [
    {slice: 0, start: 0, end: 5}, {slice: 1, start: 5, end: 8}, {slice: 0, start: 8, end: 20}, {slice: 3, start: 30, end: 31},
  ])
})

for (const seed of SEEDS.slice(0, 10)) {
  test(`every nanosecond is that of the latest slice that is open (${seed})`, () => {
    const next = random(seed)
    const slices = Array.from({length: 25}, (): Slice => {
      const start = Math.floor(next()*45)
      return {start, end: start + Math.floor(next()*15)}
    }).sort((a, b) => a.start - b.start || b.end - a.end)
    const expected = Array.from({length: 60}, (_, ns) => slices.reduce((last, {start, end}, i) => start <= ns && end > ns ? i : last, -1))
    assert.deepEqual(told(slices), expected)
  })
}
