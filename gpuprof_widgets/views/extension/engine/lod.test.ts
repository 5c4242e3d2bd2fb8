import assert from "node:assert/strict"
import {test} from "node:test"

import {hit, lanes_of_rows, level_of_detail, marks_of} from "./lod"
import type {Store} from "./store"
import {is_open} from "./testing/oracles"
import {random, random_store, RANDOM_STORES, SEEDS, store_of} from "./testing/traces"

type View = {start: number, end: number, pixels: number}

const VIEWS: View[] = [
  {start: 0, end: 200, pixels: 10}, {start: 0, end: 200, pixels: 200},
  {start: 33, end: 71, pixels: 7}, {start: 50, end: 53.5, pixels: 1000},
]

function* lanes_in_views(): Generator<[Store, number, number, View]> {
  for (const store of RANDOM_STORES) {
    for (const track of [0, 1]) {
      for (let level = 0; level < store.levels(track); level++) {
        for (const view of VIEWS) {
          yield [store, track, level, view]
        }
      }
    }
  }
}

function in_view(store: Store, row: number, {start, end}: View): boolean {
  const ts = store.ts[row]
  return ts < end && (store.end[row] > start || (store.end[row] == ts && ts >= start))
}

test("every slice in view is in exactly one mark, in order", () => {
  for (const [store, track, level, view] of lanes_in_views()) {
    const marks = level_of_detail(store, track, level, view.start, view.end, view.pixels)
    const visible = Array.from(store.lane(track, level)).filter((row) => in_view(store, row, view))
    const marked = Array.from({length: marks.n}, (_, i) => {
      const first = visible.indexOf(marks.row[i])
      return visible.slice(first, first + marks.merged[i])
    })
    assert.deepEqual(marked.flat(), visible)
    marked.forEach((rows, i) => {
      assert.equal(marks.x0[i], store.ts[rows[0]])
      assert.equal(marks.x1[i], store.end[rows[rows.length - 1]])
    })
  }
})

test("a slice of a pixel or more is never merged, shorter ones of a pixel are one mark", () => {
  for (const [store, track, level, view] of lanes_in_views()) {
    const pixel = (view.end - view.start)/view.pixels
    const pixel_of = (row: number): number => Math.floor((store.ts[row] - view.start)/pixel)
    const marks = level_of_detail(store, track, level, view.start, view.end, view.pixels)
    const merged_pixels = new Set<number>()
    for (let i = 0; i < marks.n; i++) {
      const row = marks.row[i]
      if (store.end[row] - store.ts[row] >= pixel) {
        assert.equal(marks.merged[i], 1)
      } else {
        assert.ok(!merged_pixels.has(pixel_of(row)))
        merged_pixels.add(pixel_of(row))
      }
    }
    assert.ok(marks.n <= 2*view.pixels + 2)
  }
})

test("zooming in shows every single slice", () => {
  const rows = Array.from({length: 1000}, (_, i) => ({name: "op", ts: 3*i, dur: 2}))
  const store = store_of(rows)
  assert.ok(level_of_detail(store, 0, 0, 0, 3000, 100).n <= 102)
  const marks = level_of_detail(store, 0, 0, 300, 330, 100)
  assert.deepEqual(Array.from(marks.merged), Array(10).fill(1))
  assert.deepEqual(Array.from(marks.row), rows.slice(100, 110).map(({ts}) => ts/3))
})

test("the slice under the pointer is hit, else the nearest within reach", () => {
  for (const seed of SEEDS) {
    const store = random_store(seed)
    const next = random(seed)
    for (let level = 0; level < store.levels(0); level++) {
      const lane = Array.from(store.lane(0, level))
      for (let i = 0; i < 20; i++) {
        const tick = next()*210
        const distance = (row: number): number => Math.max(store.ts[row] - tick, tick - store.end[row], 0)
        const nearest = Math.min(...lane.map(distance))
        const row = hit(store, 0, level, tick, 3)
        assert.equal(row >= 0, nearest <= 3)
        if (row >= 0) {
          assert.equal(distance(row), nearest)
        }
        const covering = lane.find((row) => is_open(store, row, tick))
        if (covering != null) {
          assert.equal(row, covering)
        }
      }
    }
  }
})

test("some rows by level are those rows, and marks of all of them are those of the level", () => {
  for (const store of RANDOM_STORES) {
    const some = Int32Array.from({length: store.rows}, (_, row) => row).filter((row) => row % 3 > 0)
    const lanes = lanes_of_rows(store, some)
    assert.deepEqual(lanes.flatMap(({rows}) => Array.from(rows)).sort((a, b) => a - b), Array.from(some))
    lanes.forEach(({track, depth, rows}) => rows.forEach((row) => assert.deepEqual([store.track[row], store.depth[row]], [track, depth])))
    for (const lane of lanes_of_rows(store, Int32Array.from({length: store.rows}, (_, row) => row))) {
      for (const {start, end, pixels} of VIEWS) {
        assert.deepEqual(marks_of(store, lane, start, end, pixels), level_of_detail(store, lane.track, lane.depth, start, end, pixels))
      }
    }
  }
})
