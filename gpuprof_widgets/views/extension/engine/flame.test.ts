import assert from "node:assert/strict"
import {test} from "node:test"

import type {Window} from "./columns"
import {flame, flame_sources, flame_width, laid_out, path_instances, row_paths, UNLAUNCHED, type FlameNode} from "./flame"
import type {} from "./store"
import {covered, rows_of_track} from "./testing/oracles"
import {random_store, RANDOM_STORES, SEEDS, store_of, type Row} from "./testing/traces"

const WINDOWS: Window[] = [{start: 0, end: 200}, {start: 31, end: 90}, {start: 90, end: 91}]

function path(nodes: FlameNode[], id: number): string[] {
  return id == 0 ? [] : [...path(nodes, nodes[id].parent), nodes[id].name]
}

test("the widths of the children fit into their parent and add up to its total, by either time", () => {
  for (const seed of SEEDS) {
    for (const [window, time] of WINDOWS.flatMap((window) => [[window, "cpu"], [window, "device"]] as const)) {
      const nodes = laid_out(flame(random_store(seed), window, "ops"), time)
      const width = (node: FlameNode): number => flame_width(node, time)
      for (const node of nodes) {
        const children = nodes.filter(({parent}) => parent == node.id)
        const self = time == "cpu" ? node.self : node.device_self
        assert.equal(width(node), children.reduce((sum, child) => sum + width(child), self))
        let x = node.x0
        for (const child of children.sort((a, b) => a.x0 - b.x0 || a.x1 - b.x1)) {
          assert.ok(Math.abs(child.x0 - x) < 1e-9)
          x = child.x1
        }
        assert.ok(x <= node.x1 + 1e-9)
        assert.ok(Math.abs((node.x1 - node.x0)*width(nodes[0]) - width(node)) < 1e-6)
      }
    }
  }
})

test("the self times of the GPU are all of its slices in the window", () => {
  for (const store of RANDOM_STORES) {
    for (const window of WINDOWS) {
      const nodes = flame(store, window, "ops")
      const slices = Array.from(store.on_gpu.keys()).filter((row) => store.on_gpu[row] == 1)
      const whole = slices.reduce((sum, row) => sum + store.time_inside(row, window), 0)
      assert.equal(nodes.reduce((sum, {device_self}) => sum + device_self, 0), whole)
      assert.equal(nodes[0].device, whole)
    }
  }
})

test("what nothing in the tree launched is a node beside the threads, with its slices", () => {
  const store = store_of([
    {name: "mm", ts: 0, dur: 9},
    {name: "gemm", ts: 10, dur: 5, track: 1, owner: 0},
    {name: "of before", ts: 1, dur: 4, track: 1},
    {name: "of another", ts: 20, dur: 3, track: 1},
  ], {kinds: ["cpu", "gpu"]})
  const rows = (nodes: FlameNode[]): [string, number, number, number][] =>
    nodes.map(({category, calls, total, device}) => [category, calls, total, device])
  const nodes = flame(store, store.whole, "ops")
  assert.deepEqual(rows(nodes), [["thread", 0, 9, 12], ["cpu_op", 1, 9, 5], [UNLAUNCHED, 2, 0, 7]])
  const names = Array.from(path_instances(store, "ops", nodes[2].paths), (row) => store.name(row))
  assert.deepEqual(names, ["of before", "of another"])
  laid_out(nodes, "device")
  assert.deepEqual(nodes.map(({x0, x1}) => [Math.round(12*x0), Math.round(12*x1)]), [[0, 12], [7, 12], [0, 7]])
  assert.deepEqual(rows(flame(store, {start: 19, end: 21}, "ops")), [["thread", 0, 0, 1], [UNLAUNCHED, 1, 0, 1]])
})

test("the root is the time during which the thread did anything", () => {
  for (const store of RANDOM_STORES) {
    for (const window of WINDOWS) {
      assert.equal(flame(store, window, "ops")[0].total, covered(store, rows_of_track(store, 0), window))
    }
  }
})

test("equal paths are one node, and its slices are those of the path", () => {
  for (const store of RANDOM_STORES) {
    const nodes = flame(store, store.whole, "ops")
    const path_of_row = (row: number): string[] => row < 0 ? [] : [...path_of_row(store.parent[row]), store.name(row)]
    assert.equal(new Set(nodes.map(({id}) => path(nodes, id).join())).size, nodes.length)
    for (const node of nodes.slice(1).filter(({category}) => category != UNLAUNCHED)) {
      const rows = Array.from(path_instances(store, "ops", node.paths))
      const expected = rows_of_track(store, 0).filter((row) => path_of_row(row).join() == path(nodes, node.id).join())
      assert.deepEqual(rows, expected)
      assert.equal(node.calls, rows.length)
    }
  }
})

const STEP = store_of([
  {name: "step", ts: 0, dur: 50, category: "user_annotation"},
  {name: "mm", ts: 12, dur: 6},
  {name: "launch", ts: 13, dur: 2, category: "cuda_runtime"},
  {name: "outlives", ts: 30, dur: 15, category: "user_annotation"},
  {name: "train", ts: 5, dur: 44, track: 1},
  {name: "matmul", ts: 12, dur: 6, track: 1},
  {name: "__enter__", ts: 29, dur: 2, track: 1},
  {name: "gemm", ts: 60, dur: 8, track: 2, owner: 2},
], {kinds: ["cpu", "python", "gpu"]})

test("Python frames and ops are nested together; a region outlives the frame of its entry", () => {
  const nodes = flame(STEP, STEP.whole, "merged")
  const paths = nodes.map(({id}) => path(nodes, id).join(" ")).filter((text) => text != "").sort()
  assert.deepEqual(paths, [
    "step", "step train", "step train __enter__", "step train matmul", "step train matmul mm",
    "step train matmul mm launch", "step train outlives",
  ])
})

test("GPU time counts for the launch and all around it, also when it runs later", () => {
  const nodes = flame(STEP, {start: 60, end: 64}, "merged")
  assert.deepEqual(nodes.map(({name, calls, self, device}) => [name, calls, self, device]), [
    ["all threads", 0, 0, 4], ["step", 0, 0, 4], ["train", 0, 0, 4], ["matmul", 0, 0, 4],
    ["mm", 0, 0, 4], ["launch", 0, 0, 4],
  ])
})

test("a window keeps who is inside whom", () => {
  const nodes = flame(STEP, {start: 14, end: 15}, "merged")
  assert.deepEqual(path(nodes, nodes.length - 1), ["step", "train", "matmul", "mm", "launch"])
  assert.deepEqual(nodes.map(({self}) => self), [0, 0, 0, 0, 0, 1])
})

test("the steps of a profiler are one node", () => {
  const step = (number: number): Row[] => [
    {name: `ProfilerStep#${number}`, ts: 10*number, dur: 9, category: "user_annotation"}, {name: "mm", ts: 10*number + 1, dur: 3},
  ]
  const store = store_of([...step(1), ...step(2)])
  const nodes = flame(store, store.whole, "ops")
  assert.deepEqual(nodes.map(({name, calls, total}) => [name, calls, total]), [["all threads", 0, 18], ["ProfilerStep*", 2, 18], ["mm", 2, 6]])
  assert.deepEqual(Array.from(row_paths(store, "ops", store.rows_of_track(0))), [1, 2, 1, 2])
})

test("several threads are a level of their own", () => {
  const store = store_of([{name: "a", ts: 0, dur: 4}, {name: "b", ts: 0, dur: 9, track: 1}], {kinds: ["cpu", "cpu"]})
  const nodes = flame(store, store.whole, "ops")
  assert.deepEqual(nodes.map(({id}) => path(nodes, id).join()), ["", "cpu 0", "cpu 0,a", "cpu 1", "cpu 1,b"])
  assert.deepEqual(Array.from(row_paths(store, "ops", Int32Array.of(0, 1))), [2, 4])
})

test("cProfile's functions have no slices; sources are those that were recorded", () => {
  const calls = [{parent: -1, name: "all calls", calls: 0, total_ns: 9, self_ns: 0, library: false}, {parent: 0, name: "f", calls: 2, total_ns: 9, self_ns: 9, library: false}]
  const store = store_of([{name: "a", ts: 0, dur: 4}], {calls})
  const nodes = flame(store, store.whole, "cprofile")
  assert.deepEqual(nodes.map(({name, depth, total, x1}) => [name, depth, total, x1]), [["all calls", 0, 9, 1], ["f", 1, 9, 1]])
  assert.deepEqual(Array.from(path_instances(store, "cprofile", nodes[1].paths)), [])
  assert.deepEqual(flame_sources(store), ["ops", "cprofile"])
  assert.deepEqual(flame_sources(STEP), ["merged", "ops"])
})
