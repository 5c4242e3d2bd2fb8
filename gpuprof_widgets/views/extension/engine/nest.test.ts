import assert from "node:assert/strict"
import {test} from "node:test"

import {innermost} from "./nest"
import {is_open, rows_of_track, self_times} from "./testing/oracles"
import {random_integers, RANDOM_STORES, row_named, SEEDS, store_of} from "./testing/traces"

test("the parent is the latest-started slice that is still open", () => {
  for (const store of RANDOM_STORES) {
    for (const track of [0, 1]) {
      for (const row of rows_of_track(store, track)) {
        const before = rows_of_track(store, track).filter((other) => other < row && is_open(store, other, store.ts[row]))
        assert.equal(store.parent[row], before.pop() ?? -1)
      }
    }
  }
})

test("a slice that outlasts its parent stays its child", () => {
  const store = store_of([{name: "outer", ts: 0, dur: 10}, {name: "late", ts: 8, dur: 9}, {name: "next", ts: 12, dur: 1}])
  assert.deepEqual(Array.from(store.parent), [-1, 0, 1])
  assert.deepEqual(Array.from(store.depth), [0, 1, 2])
})

test("self times are what nobody inside takes, moment by moment", () => {
  for (const store of RANDOM_STORES) {
    for (const track of [0, 1]) {
      const rows = rows_of_track(store, track)
      const expected = self_times(store, rows, {start: 0, end: 200})
      for (const row of rows) {
        assert.equal(store.self_time(row), expected.get(row) ?? 0)
      }
    }
  }
})

test("slices of one level follow each other", () => {
  for (const store of RANDOM_STORES) {
    for (let level = 0; level < store.levels(0); level++) {
      const lane = store.lane(0, level)
      lane.slice(1).forEach((row, i) => assert.ok(store.ts[row] >= store.end[lane[i]]))
    }
  }
})

test("GPU slices belong to the innermost op around their launch", () => {
  const store = store_of([
    {name: "step", ts: 0, dur: 20, category: "user_annotation"},
    {name: "mm", ts: 1, dur: 9},
    {name: "cudaLaunchKernel", ts: 2, dur: 3, category: "cuda_runtime"},
    {name: "gemm", ts: 30, dur: 5, track: 1, owner: 2},
    {name: "by op", ts: 40, dur: 5, track: 1, owner: 0},
    {name: "unknown", ts: 50, dur: 5, track: 1},
  ], {kinds: ["cpu", "gpu"]})
  assert.equal(store.op[row_named(store, "gemm")], row_named(store, "mm"))
  assert.equal(store.op[row_named(store, "cudaLaunchKernel")], row_named(store, "mm"))
  assert.equal(store.op[row_named(store, "by op")], row_named(store, "step"))
  assert.equal(store.op[row_named(store, "unknown")], -1)
  assert.deepEqual(Array.from(store.launched(row_named(store, "cudaLaunchKernel"))), [row_named(store, "gemm")])
  assert.deepEqual(Array.from(store.launched(row_named(store, "mm"))), [])
})

type Slice = {start: number, end: number}
type Stretch = {slice: number, start: number, end: number}

/** One track of these slices, which stand by their starts. */
function track_of(slices: Slice[]): Parameters<typeof innermost>[0] {
  return {
    ts: Float64Array.from(slices, ({start}) => start), end: Float64Array.from(slices, ({end}) => end),
    first_row: Uint32Array.of(0, slices.length),
  }
}

function stretches_of(slices: Slice[]): Stretch[] {
  const stretches: Stretch[] = []
  innermost(track_of(slices), 0, (slice, start, end) => { stretches.push({slice, start, end}) })
  return stretches
}

/** The slice of each ns up to 60, -1 for none, as the stretches say. */
function innermost_by_ns(slices: Slice[]): number[] {
  const by_ns = new Array<number>(60).fill(-1)
  for (const {slice, start, end} of stretches_of(slices)) {
    assert.ok(end > start)
    for (let ns = start; ns < end; ns++) {
      assert.equal(by_ns[ns], -1)
      by_ns[ns] = slice
    }
  }
  return by_ns
}

test("a caller runs before, between and after what it calls", () => {
  assert.deepEqual(stretches_of([{start: 0, end: 20}, {start: 5, end: 8}, {start: 8, end: 8}, {start: 30, end: 31}]), [
    {slice: 0, start: 0, end: 5}, {slice: 1, start: 5, end: 8}, {slice: 0, start: 8, end: 20}, {slice: 3, start: 30, end: 31},
  ])
})

for (const seed of SEEDS.slice(0, 10)) {
  test(`every nanosecond is that of the latest slice that is open (${seed})`, () => {
    const below = random_integers(seed)
    const slices = Array.from({length: 25}, (): Slice => {
      const start = below(45)
      return {start, end: start + below(15)}
    }).sort((a, b) => a.start - b.start || b.end - a.end)
    const expected = Array.from({length: 60}, (_, ns) => slices.reduce((last, {start, end}, i) => start <= ns && end > ns ? i : last, -1))
    assert.deepEqual(innermost_by_ns(slices), expected)
  })
}
