import assert from "node:assert/strict"
import {test} from "node:test"

import {Gestures, History, type State} from "./history"

function state(mark: number): State {
  return {marks: [mark], restore: () => undefined}
}

test("the changes of one gesture are one step back", () => {
  const history = new History(state(0))
  for (const [mark, gesture] of [[1, 7], [2, 7], [3, 7], [4, 8]]) {
    history.note(state(mark), gesture)
  }
  assert.equal(history.back(9)?.marks[0], 3)
  history.settle(state(3))
  assert.equal(history.back(10)?.marks[0], 0)
  history.settle(state(0))
  assert.equal(history.back(11), null)
})

test("a gesture that changes nothing, or takes its change back, is no step", () => {
  const history = new History(state(0))
  history.note(state(1), 1)
  history.note(state(1), 2)
  history.note(state(2), 3)
  history.note(state(1), 3)
  assert.equal(history.back(4)?.marks[0], 0)
})

test("after a step back the next change can be undone as well", () => {
  const history = new History(state(0))
  history.note(state(1), 1)
  history.settle(history.back(2)!)
  history.note(state(2), 3)
  assert.equal(history.back(4)?.marks[0], 0)
})

test("what follows from a step back, even later, is part of it", () => {
  const history = new History(state(0))
  ;[1, 2].forEach((mark, i) => history.note(state(mark), i))
  history.settle(history.back(2)!)
  history.note(state(7), 2)
  assert.equal(history.has_step, true)
  assert.equal(history.back(3)?.marks[0], 0)
})

test("the history is bounded and keeps the latest steps", () => {
  const history = new History(state(0))
  for (let i = 1; i <= 150; i++) {
    history.note(state(i), i)
  }
  let steps = 0
  let last: State | null = null
  for (let to = history.back(151); to != null; to = history.back(151)) {
    steps += 1
    last = to
  }
  assert.deepEqual([steps, last?.marks], [100, [50]])
})

test("a held key and a turning wheel are one gesture, each press is another", () => {
  const gestures = new Gestures()
  const counts = [
    {type: "keydown", timeStamp: 0}, {type: "keydown", timeStamp: 500, repeat: true}, {type: "keydown", timeStamp: 600},
    {type: "wheel", timeStamp: 610}, {type: "wheel", timeStamp: 800}, {type: "wheel", timeStamp: 1051},
    {type: "pointerdown", timeStamp: 1060}, {type: "wheel", timeStamp: 1070},
  ].map((event) => {
    gestures.note(event)
    return gestures.count
  })
  assert.deepEqual(counts, [1, 1, 2, 3, 3, 4, 5, 6])
})
