import assert from "node:assert/strict"
import {test} from "node:test"

import type {Window} from "./columns"
import {flame, UNLAUNCHED, type FlameNode} from "./flame"
import {has_library, PLAIN, reshaped, type FlameShape} from "./flame_shape"
import type {Store} from "./store"
import {random_store, SEEDS, store_of} from "./testing/traces"

const WINDOWS: Window[] = [{start: 0, end: 200}, {start: 31, end: 90}, {start: 90, end: 91}]
const CASES = SEEDS.flatMap((seed) => WINDOWS.map((window) => [random_store(seed), window] as const))

function shaped(store: Store, window: Window, shape: Partial<FlameShape>, source: "ops" | "merged" = "ops"): FlameNode[] {
  return reshaped(store, flame(store, window, source), {...PLAIN, ...shape})
}

function sum(nodes: FlameNode[], value: (node: FlameNode) => number): number {
  return nodes.reduce((sum, node) => sum + value(node), 0)
}

function path_of(nodes: FlameNode[], {id, name, parent}: FlameNode): string {
  return id == 0 ? "" : `${path_of(nodes, nodes[parent])}/${name}`
}

function numbers(nodes: FlameNode[]): Record<string, number[]> {
  return Object.fromEntries(nodes.map((node) => [path_of(nodes, node), [node.calls, node.total, node.self]]))
}

test("without a change the tree is the plain one", () => {
  for (const [store, window] of CASES) {
    assert.deepEqual(shaped(store, window, {}), flame(store, window, "ops"))
  }
})

const FRAMES = store_of([
  {name: "step", ts: 0, dur: 100, track: 1}, {name: "torch/nn.py(1): __call__", ts: 10, dur: 80, track: 1},
  {name: "forward", ts: 20, dur: 60, track: 1}, {name: "torch/nn.py(1): __call__", ts: 30, dur: 20, track: 1},
  {name: "mm", ts: 35, dur: 10}, {name: "runpy.py(3): run", ts: 200, dur: 50, track: 1}, {name: "step", ts: 210, dur: 10, track: 1},
], {kinds: ["cpu", "python"], library: ["torch/nn.py(1): __call__", "runpy.py(3): run"]})

test("hidden frames of libraries give their own time to what called them", () => {
  assert.deepEqual(numbers(shaped(FRAMES, FRAMES.whole, {hides_library: true}, "merged")), {
    "": [0, 150, 40], "/step": [2, 110, 10 + 20 + 20], "/step/forward": [1, 60, 40 + 10], "/step/forward/mm": [1, 10, 10],
  })
  assert.deepEqual([has_library(FRAMES, "merged"), has_library(FRAMES, "ops")], [true, false])
})

test("what hidden frames took that nothing called has a bar of its own upside down", () => {
  const nodes = shaped(FRAMES, FRAMES.whole, {bottom_up: true, hides_library: true}, "merged")
  const functions = nodes.filter(({depth}) => depth == 1)
  assert.equal(sum(functions, ({total}) => total), 150)
  assert.equal(functions.find(({name}) => name.startsWith("libraries"))!.total, 40)
})

test("upside down, every function has its self time, and its callers have theirs", () => {
  for (const [store, window] of CASES) {
    const plain = flame(store, window, "ops")
    const nodes = shaped(store, window, {bottom_up: true})
    const functions = nodes.filter(({depth}) => depth == 1)
    for (const {name, category, total, device, calls, paths} of functions) {
      const same = plain.filter((node) => node.id > 0 && node.name == name && node.category == category)
      const own = [sum(same, ({self}) => self), sum(same, ({device_self}) => device_self), sum(same, ({calls}) => calls)]
      assert.deepEqual([total, device, calls], own)
      assert.deepEqual(new Set(paths), new Set(same.flatMap(({paths}) => paths)))
    }
    assert.equal(sum(functions, ({total}) => total), plain[0].total)
    assert.equal(sum(functions, ({device}) => device), plain[0].device)
    for (const node of nodes.filter(({depth}) => depth > 1)) {
      const chain = path_of(nodes, node).split("/").slice(1)
      const outward = (from: FlameNode): string[] => path_of(plain, from).split("/").slice(1).reverse()
      const called = plain.filter((from) => outward(from).slice(0, chain.length).join("/") == chain.join("/"))
      assert.equal(node.total, sum(called, ({self}) => self))
      assert.equal(node.device, sum(called, ({device_self}) => device_self))
      assert.ok(node.total <= nodes[node.parent].total && node.device <= nodes[node.parent].device)
    }
  }
})

test("callers that caused next to nothing are left out, those of a function that takes little itself are not", () => {
  const calls = (name: string, ts: number, dur: number): {name: string, ts: number, dur: number}[] =>
    [{name, ts, dur}, {name: "mm", ts, dur}]
  const rare = [{name: "rare", ts: 200_000, dur: 20}, {name: "add", ts: 200_001, dur: 3}]
  const store = store_of([...calls("often", 0, 100_000), ...calls("seldom", 100_000, 20), ...rare])
  const paths = shaped(store, store.whole, {bottom_up: true}).map((node, _, nodes) => path_of(nodes, node))
  assert.deepEqual(paths.filter((path) => path.split("/").length == 3), ["/mm/often", "/add/rare"])
})

test("built-in methods of different objects are one function", () => {
  const store = store_of([0, 1].map((i) => ({name: `<built-in method mm of Tensor object at 0x7f0${i}>`, ts: 10*i, dur: 4})))
  const name = "<built-in method mm of Tensor object>"
  assert.deepEqual(numbers(shaped(store, store.whole, {bottom_up: true})), {"": [0, 8, 0], [`/${name}`]: [2, 8, 8]})
})

test("GPU work without a launch stays beside the functions", () => {
  const store = store_of([{name: "mm", ts: 0, dur: 9}, {name: "gemm", ts: 1, dur: 4, track: 1}], {kinds: ["cpu", "gpu"]})
  const nodes = shaped(store, store.whole, {bottom_up: true})
  assert.deepEqual(nodes.slice(1).map(({category, device}) => [category, device]), [["cpu_op", 0], [UNLAUNCHED, 4]])
})
