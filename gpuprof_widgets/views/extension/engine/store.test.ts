import assert from "node:assert/strict"
import {test} from "node:test"

import {chain} from "./chain"
import {totals} from "./device_time"
import {bands} from "./names"
import {covered, rows_of_track} from "./testing/oracles"
import {RANDOM_STORES, row_named, store_of} from "./testing/traces"

const STEP = store_of([
  {name: "ProfilerStep#3", ts: 0, dur: 90, category: "user_annotation"},
  {name: "aten::linear", ts: 12, dur: 9, shape: "[[2, 3]]", bytes: 64},
  {name: "aten::addmm", ts: 13, dur: 6},
  {name: "cudaLaunchKernel", ts: 14, dur: 2, category: "cuda_runtime"},
  {name: "LinearBackward", ts: 50, dur: 9, forward: 1},
  {name: "train.py(7): step", ts: 1, dur: 80, track: 1},
  {name: "nn.Module: Linear_0", ts: 11, dur: 12, track: 1},
  {name: "torch/nn/linear.py(114): forward", ts: 11, dur: 11, track: 1},
  {name: "gemm", ts: 60, dur: 20, track: 2, owner: 3},
  {name: "Memcpy HtoD", ts: 65, dur: 25, track: 3, owner: 1},
], {kinds: ["cpu", "python", "gpu", "copy"], end_ns: 100, library: ["torch/nn/linear.py(114): forward"]})

function chain_of(name: string): string[] {
  return chain(STEP, row_named(STEP, name)).map(({role, text}) => `${role} ${text}`)
}

test("a kernel's chain leads from the step over module, line, ops and launch to itself", () => {
  assert.deepEqual(chain_of("gemm"), [
    "annotation ProfilerStep#3", "python train.py(7): step", "module nn.Module: Linear_0", "op aten::linear",
    "op aten::addmm", "launch cudaLaunchKernel", "gpu gemm",
  ])
})

test("a chain leaves out what is not known, and names the forward op of a backward one", () => {
  assert.deepEqual(chain_of("LinearBackward"), [
    "annotation ProfilerStep#3", "python train.py(7): step", "forward aten::linear", "op LinearBackward",
  ])
  assert.deepEqual(chain_of("Memcpy HtoD"), [
    "annotation ProfilerStep#3", "python train.py(7): step", "module nn.Module: Linear_0", "op aten::linear", "gpu Memcpy HtoD",
  ])
  assert.deepEqual(chain_of("ProfilerStep#3"), ["annotation ProfilerStep#3"])
  assert.deepEqual(chain_of("nn.Module: Linear_0"), ["python train.py(7): step", "module nn.Module: Linear_0"])
})

test("a row has its text and numbers", () => {
  const row = row_named(STEP, "aten::linear")
  assert.deepEqual([STEP.category(row), STEP.shape(row), STEP.bytes(row)], ["cpu_op", "[[2, 3]]", 64])
  assert.deepEqual([STEP.shape(row + 1), STEP.bytes(row + 1)], ["", 0])
  assert.deepEqual(Array.from(STEP.instances(STEP.label[row])), [row])
})

test("a window is snapped to whole ticks of the record", () => {
  assert.deepEqual(STEP.snap({start: 12.4, end: 13.6}), {start: 12, end: 14})
  assert.deepEqual(STEP.snap({start: 500, end: -3}), {start: 0, end: 100})
})

test("a moment belongs to the window that begins with it, at the end of the record to the last", () => {
  const store = store_of([{name: "mark", ts: 5, dur: 0}, {name: "last", ts: 10, dur: 0}])
  assert.deepEqual([[0, 5], [5, 10]].map(([start, end]) => store.is_inside(0, {start, end})), [false, true])
  assert.deepEqual([[0, 9], [9, 10]].map(([start, end]) => store.is_inside(1, {start, end})), [false, true])
})

test("steps and annotations are bands in the order of time", () => {
  const store = store_of([
    {name: "ProfilerStep#1", ts: 20, dur: 10, category: "user_annotation"},
    {name: "load", ts: 0, dur: 5, category: "user_annotation"},
    {name: "mark", ts: 3, dur: 0, category: "user_annotation"},
    {name: "aten::mm", ts: 1, dur: 2},
  ])
  assert.deepEqual(bands(store).map(({kind, name, start, end}) => [kind, name, start, end]),
    [["annotation", "load", 0, 5], ["step", "ProfilerStep#1", 20, 30]])
})

test("a GPU is busy while any of its streams is", () => {
  const {span, devices} = totals(STEP, {start: 62, end: 100})
  assert.equal(span, 38)
  assert.deepEqual(devices, [{device: 0, busy: 28, idle: 10}])
  for (const store of RANDOM_STORES) {
    const window = {start: 20, end: 150}
    const busy = covered(store, rows_of_track(store, 1), window)
    assert.deepEqual(totals(store, window).devices, [{device: 0, busy, idle: 130 - busy}])
  }
})

test("coarse ticks are told in nanoseconds", () => {
  const store = store_of([{name: "op", ts: 3, dur: 4}], {tick_ns: 1000})
  assert.deepEqual([store.ns(4), store.tick(7000), store.whole], [4000, 7, {start: 0, end: 7}])
  assert.equal(totals(store, store.whole).span, 7000)
})
