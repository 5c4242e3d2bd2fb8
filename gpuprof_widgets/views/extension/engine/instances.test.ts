import assert from "node:assert/strict"
import {test} from "node:test"

import {instance_from, next_instance, place_of_instance, type Instance, type Selected} from "./instances"
import {search} from "./search"
import {RANDOM_STORES} from "./testing/traces"

/** The selected slices of two traces, and the same sorted by start. */
function* selections(): Generator<[Selected[], Instance[]]> {
  for (let i = 0; i + 1 < RANDOM_STORES.length; i++) {
    for (const name of ["f0", "k1", "nothing"]) {
      const selected = RANDOM_STORES.slice(i, i + 2).map((store) => ({store, rows: search(store, (other) => other == name).rows}))
      const start = ({side, row}: Instance): number => selected[side].store.ts[row]
      const all = selected.flatMap(({rows}, side) => Array.from(rows, (row) => ({side, row})))
      yield [selected, all.sort((a, b) => start(a) - start(b) || a.side - b.side || a.row - b.row)]
    }
  }
}

test("steps go through the slices in the order of time and around the ends", () => {
  for (const [selected, sorted] of selections()) {
    sorted.forEach((current, i) => {
      assert.deepEqual(next_instance(selected, current, 1), sorted[(i + 1) % sorted.length])
      assert.deepEqual(next_instance(selected, current, -1), sorted.at(i - 1))
      assert.equal(place_of_instance(selected, current), i + 1)
    })
  }
})

test("the first step goes to the first slice from a time on, else to the first of all", () => {
  for (const [selected, sorted] of selections()) {
    for (const time of [0, 50, 120.5, 1000]) {
      const from = sorted.find(({side, row}) => selected[side].store.ts[row] >= time)
      assert.deepEqual(instance_from(selected, time), from ?? sorted[0] ?? null)
    }
  }
})
