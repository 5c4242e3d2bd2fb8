import assert from "node:assert/strict"
import {test} from "node:test"

import {TrackOrder} from "./track_order"

const FIVE = new TrackOrder([0, 1, 2, 3, 4])

test("pinned tracks stand on top in their order, and return to their places", () => {
  const pinned = FIVE.pin(3).pin(1)
  assert.deepEqual([pinned.on_top, pinned.below], [[1, 3], [0, 2, 4]])
  const unpinned = pinned.pin(1)
  assert.deepEqual([unpinned.on_top, unpinned.below], [[3], [0, 1, 2, 4]])
  assert.deepEqual(FIVE.below, [0, 1, 2, 3, 4])
})

test("hidden tracks leave, pinned or not, and come back as they were", () => {
  const hidden = FIVE.pin(4).hide(4).hide(1)
  assert.deepEqual([hidden.on_top, hidden.below, [...hidden.hidden]], [[], [0, 2, 3], [4, 1]])
  assert.deepEqual([hidden.show([1]).below, hidden.show([1]).hidden.size], [[0, 1, 2, 3], 1])
  assert.deepEqual([hidden.show().on_top, hidden.show().below], [[4], [0, 1, 2, 3]])
  assert.equal(FIVE.show(), FIVE)
})

test("a track moves past its next shown peer, and stays at the ends", () => {
  const some = FIVE.hide(2).pin(4)
  assert.deepEqual(some.move(1, 1).below, [0, 3, 1])
  assert.deepEqual(some.move(3, -1).below, [0, 3, 1])
  assert.deepEqual(some.move(3, -1).show().pin(4).below, [0, 3, 1, 2, 4])
  for (const [track, by] of [[0, -1], [3, 1], [4, 1], [4, -1]] as const) {
    assert.equal(some.move(track, by), some)
  }
})

test("a track is placed before any of its peers or last", () => {
  assert.deepEqual([0, 1, 2, 3, 4, 5].map((at) => FIVE.place(2, at).order.join("")), ["20134", "02134", "01234", "01234", "01324", "01342"])
  const pinned = FIVE.pin(0).pin(2).pin(4)
  assert.deepEqual([pinned.place(4, 0).on_top, pinned.place(0, 3).on_top], [[4, 0, 2], [2, 4, 0]])
  assert.deepEqual(pinned.place(3, 0).below, [3, 1])
})

test("whatever is done, every track is there once", () => {
  let order = FIVE
  for (let i = 0; i < 500; i++) {
    const track = (i * 7) % 5
    const steps = [order.pin(track), order.hide(track), order.show(), order.move(track, i % 2 == 0 ? 1 : -1), order.place(track, i % 6)]
    order = order.hidden.has(track) ? order.show([track]) : steps[(i * i) % 5]
    assert.deepEqual([...order.on_top, ...order.below, ...order.hidden].sort(), [0, 1, 2, 3, 4])
    assert.deepEqual([...order.order].sort(), [0, 1, 2, 3, 4])
  }
})
