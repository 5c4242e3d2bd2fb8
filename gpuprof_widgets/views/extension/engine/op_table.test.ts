import assert from "node:assert/strict"
import {test} from "node:test"

import type {Window} from "./columns"
import {op_row_instances, op_row_keys, op_table, self_times as totals, type Grouping, type OpRow} from "./op_table"
import type {Store} from "./store"
import {rows_of_track, self_times} from "./testing/oracles"
import {RANDOM_STORES, store_of} from "./testing/traces"

const WINDOWS: Window[] = [{start: 0, end: 200}, {start: 31, end: 90}, {start: 90, end: 91}, {start: 40, end: 40}]

function table_by_name(store: Store, window: Window, grouping: Grouping = "name"): Map<string, OpRow> {
  return new Map(op_table(store, window, grouping).map((row) => [row.name, row]))
}

test("self times of a window are moments at which an op is the innermost one", () => {
  for (const store of RANDOM_STORES) {
    for (const window of WINDOWS) {
      const table = table_by_name(store, window)
      const expected = new Map<string, number>()
      for (const [row, time] of self_times(store, rows_of_track(store, 0), window)) {
        if (row >= 0) {
          expected.set(store.name(row), (expected.get(store.name(row)) ?? 0) + time)
        }
      }
      for (const name of ["f0", "f1", "f2", "f3"]) {
        assert.equal(table.get(name)?.cpu_self ?? 0, expected.get(name) ?? 0)
      }
    }
  }
})

test("GPU time goes to the op around the launch, and kernels have rows of their own", () => {
  for (const store of RANDOM_STORES) {
    for (const window of WINDOWS) {
      const expected = new Map<string, number>()
      const add = (name: string, time: number): unknown => expected.set(name, (expected.get(name) ?? 0) + time)
      for (const row of rows_of_track(store, 1)) {
        add(store.name(row), store.time_inside(row, window))
        if (store.op[row] >= 0) {
          add(store.name(store.op[row]), store.time_inside(row, window))
        }
      }
      const table = table_by_name(store, window)
      for (const [name, time] of expected) {
        assert.equal(table.get(name)?.device_self ?? 0, time)
      }
    }
  }
})

test("windows that tile the record add up to it", () => {
  const edges = [0, 13, 50, 51, 120, 200]
  for (const store of RANDOM_STORES) {
    const sums = new Map<string, [number, number]>()
    edges.slice(1).forEach((end, i) => {
      for (const row of op_table(store, {start: edges[i], end}, "name")) {
        const [cpu, device] = sums.get(row.key) ?? [0, 0]
        sums.set(row.key, [cpu + row.cpu_self, device + row.device_self])
      }
    })
    for (const row of op_table(store, {start: 0, end: 200}, "name")) {
      assert.deepEqual(sums.get(row.key), [row.cpu_self, row.device_self])
    }
  }
})

const CALLS = store_of([
  {name: "linear", ts: 0, dur: 40, shape: "[2]"},
  {name: "addmm", ts: 2, dur: 30, shape: "[3]"},
  {name: "addmm", ts: 4, dur: 20, shape: "[4]"},
  {name: "linear", ts: 50, dur: 10, shape: "[5]"},
  {name: "is_leaf", ts: 51, dur: 4},
  {name: "ProfilerStep#1", ts: 70, dur: 5, category: "user_annotation"},
  {name: "ProfilerStep#2", ts: 80, dur: 6, category: "user_annotation"},
  {name: "gemm", ts: 100, dur: 7, track: 1, owner: 2},
], {kinds: ["cpu", "gpu"], unlisted: ["is_leaf"]})

test("an only child of the same name counts as one with its parent, as in torch", () => {
  const addmm = table_by_name(CALLS, CALLS.whole).get("addmm")!
  assert.deepEqual([addmm.calls, addmm.cpu_total, addmm.cpu_self], [1, 30, 30])
  assert.deepEqual([addmm.device_total, addmm.device_self], [7, 7])
  const linear = table_by_name(CALLS, CALLS.whole).get("linear")!
  assert.deepEqual([linear.calls, linear.cpu_total, linear.cpu_self, linear.device_total], [2, 50, 20, 7])
})

test("what gets no line leaves its time to the op around it; steps are one line", () => {
  const table = table_by_name(CALLS, CALLS.whole)
  assert.equal(table.get("is_leaf"), undefined)
  assert.deepEqual([table.get("ProfilerStep*")?.calls, table.get("ProfilerStep*")?.cpu_total], [2, 11])
})

test("an op keeps the GPU time that it caused after it ended", () => {
  const addmm = table_by_name(CALLS, {start: 100, end: 103}).get("addmm")!
  assert.deepEqual([addmm.calls, addmm.cpu_total, addmm.device_self], [0, 0, 3])
})

test("rows are grouped by shape, or by category", () => {
  const shapes = op_table(CALLS, CALLS.whole, "name_shape").filter(({name}) => name == "linear")
  assert.deepEqual(shapes.map(({shape, calls}) => [CALLS.header.shapes[shape], calls]), [["[2]", 1], ["[5]", 1]])
  const categories = table_by_name(CALLS, CALLS.whole, "category")
  assert.deepEqual([...categories.keys()].sort(), ["cpu_op", "kernel", "user_annotation"])
  assert.equal(categories.get("cpu_op")!.cpu_self, 50)
})

test("self times of a range count kernels and not their ops; a side that was not recorded is unknown", () => {
  for (const grouping of ["name", "name_shape", "category"] as const) {
    assert.deepEqual(totals(CALLS, op_table(CALLS, CALLS.whole, grouping)), {cpu: 61, gpu: 7})
    assert.deepEqual(totals(CALLS, op_table(CALLS, {start: 0, end: 10}, grouping)), {cpu: 10, gpu: 0})
  }
  assert.deepEqual(totals(CALLS, []), {cpu: null, gpu: null})
  const without = store_of([{name: "add", ts: 0, dur: 5}], {kinds: ["cpu"]})
  assert.deepEqual(totals(without, op_table(without, without.whole, "name")), {cpu: 5, gpu: null})
})

test("a line and its slices find each other", () => {
  for (const grouping of ["name", "name_shape", "category"] as const) {
    for (const {key, name, category} of op_table(CALLS, CALLS.whole, grouping)) {
      const rows = Array.from(op_row_instances(CALLS, grouping, key))
      assert.ok(rows.length > 0)
      for (const row of rows) {
        assert.deepEqual(op_row_keys(CALLS, grouping, Int32Array.of(row)), new Set([key]))
        assert.ok(CALLS.category(row) == category)
        assert.ok(grouping == "category" || CALLS.name(row) == name || name == "ProfilerStep*")
      }
    }
  }
  assert.deepEqual(Array.from(op_row_instances(CALLS, "name", "nothing")), [])
})
