import assert from "node:assert/strict"
import {test} from "node:test"

import {
  cell_text, format_bandwidth, format_bytes, format_count, format_moment, format_ns, format_ratio, format_share, format_ticks,
  plain,
} from "./format"
import {compile, kernel_name} from "./names"

test("times have three digits and an engineering unit", () => {
  const written: [number, string][] = [
    [0, "0 ns"], [999, "999 ns"], [999.6, "1.00 µs"], [1000, "1.00 µs"], [1125, "1.12 µs"], [1135, "1.14 µs"], [12_345, "12.3 µs"],
    [999_499, "999 µs"], [999_500, "1.00 ms"], [123_456_789, "123 ms"], [5e9, "5.00 s"], [3_600e9, "3600 s"], [-1500, "-1.50 µs"],
  ]
  written.forEach(([ns, text]) => assert.equal(plain(format_ns(ns)), text))
})

test("a kernel's own name is left of what C++ writes around it", () => {
  const names = {
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)": "vectorized_elementwise_kernel",
    "at::cuda::(anonymous namespace)::spin_kernel(long)": "spin_kernel",
    "void (anonymous namespace)::softmax_warp_forward<float, 11>(float*)": "softmax_warp_forward",
    sm80_xmma_gemm_f32f32: "sm80_xmma_gemm_f32f32",
    triton_poi_fused_addmm_gelu_0: "triton_poi_fused_addmm_gelu_0",
    "<unnamed>::": "<unnamed>::",
    "": "",
  }
  Object.entries(names).forEach(([name, own]) => assert.equal(kernel_name(name), own))
})

test("a value and its unit stay on one line", () => {
  for (const text of [format_ns(1), format_bytes(1), format_share(0.5), cell_text(1e6, "moment"), cell_text(-5, "change"), format_moment(5, 1)]) {
    assert.doesNotMatch(text, / /)
    assert.match(plain(text), /\d [^\d ]+$/)
  }
})

test("a moment is written to the nanosecond, or to a tick", () => {
  const at = (ns: number, tick = 1): string => format_moment(ns, tick).replaceAll("\u202f", "_").replace("\u00a0", " ")
  assert.deepEqual([at(12_604_031_234), at(12_604_031_234, 1000), at(60_000_000)], ["12.604_031_234 s", "12.604_031 s", "60 ms"])
  assert.deepEqual([at(1_500, 1000), at(0)], ["2 µs", "0 ns"])
})

test("ticks are in one unit, with the digits that tell them apart", () => {
  assert.deepEqual(format_ticks([0, 200e6, 400e6]).map(plain), ["0", "200 ms", "400 ms"])
  assert.deepEqual(format_ticks([800e6, 1000e6]).map(plain), ["0.8 s", "1.0 s"])
  assert.deepEqual(format_ticks([12_604_030_000, 12_604_035_000]), ["12.604\u202f030\u00a0s", "12.604\u202f035\u00a0s"])
})

test("moments in a table are in ms, to the nanosecond", () => {
  assert.deepEqual([0, 149_678_000, 12_604_031_552].map((ns) => plain(cell_text(ns, "moment"))), ["0.000000 ms", "149.678000 ms", "12,604.031552 ms"])
  assert.equal(cell_text(149_678_001, "moment"), "149.678\u202f001\u00a0ms")
})

test("a time is many times another, not thousands of percent of it", () => {
  assert.deepEqual([0.385, 1.5, 9.99, 10, 433.03, 12345].map(format_ratio).map(plain), ["38 %", "150 %", "999 %", "10x", "433x", "12,345x"])
})

test("sizes, shares and counts read alike", () => {
  assert.deepEqual([0, 512, 1536, 2**30].map(format_bytes).map(plain), ["0 B", "512 B", "1.50 KiB", "1.00 GiB"])
  assert.deepEqual([0, 999, 2e9, 3.35e12].map(format_bandwidth).map(plain), ["0 B/s", "999 B/s", "2.00 GB/s", "3.35 TB/s"])
  assert.deepEqual([0, 0.0001, 0.0123, 0.0994, 0.0996, 0.385, 1].map(format_share).map(plain),
    ["0 %", "less than 0.1 %", "1.2 %", "9.9 %", "10 %", "38 %", "100 %"])
  assert.deepEqual([0, 1, 320, 12345, 1234567].map((count) => format_count(count, "call")),
    ["0 calls", "1 call", "320 calls", "12,345 calls", "1,234,567 calls"])
})

test("a search finds names by regular expression, in any case", () => {
  const names = ["aten::mm", "aten::add", "GEMM"]
  const matching = (pattern: string): string[] => names.filter((name) => compile(pattern).regex!.test(name))
  assert.deepEqual(matching("MM$"), ["aten::mm", "GEMM"])
  assert.deepEqual(matching("^aten"), ["aten::mm", "aten::add"])
})

test("an unfinished pattern is a message, not an exception", () => {
  const {regex, error} = compile("aten::(")
  assert.equal(regex, null)
  assert.match(error!, /^Not a regular expression: .+/)
})
