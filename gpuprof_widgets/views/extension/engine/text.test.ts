import assert from "node:assert/strict"
import {test} from "node:test"

import {format_bandwidth, format_bytes, format_count, format_ns, format_ratio, format_share} from "./format"
import {compile} from "./names"

test("times have three digits and an engineering unit", () => {
  const written: [number, string][] = [
    [0, "0 ns"], [999, "999 ns"], [999.6, "1.00 µs"], [1000, "1.00 µs"], [1125, "1.12 µs"], [1135, "1.14 µs"], [12_345, "12.3 µs"],
    [999_499, "999 µs"], [999_500, "1.00 ms"], [123_456_789, "123 ms"], [5e9, "5.00 s"], [3_600e9, "3600 s"], [-1500, "-1.50 µs"],
  ]
  written.forEach(([ns, text]) => assert.equal(format_ns(ns), text))
})

test("a time is many times another, not thousands of percent of it", () => {
  assert.deepEqual([0.385, 1.5, 9.99, 10, 433.03, 12345].map(format_ratio), ["38 %", "150 %", "999 %", "10x", "433x", "12,345x"])
})

test("sizes, shares and counts read alike", () => {
  assert.deepEqual([0, 512, 1536, 2**30].map(format_bytes), ["0 B", "512 B", "1.50 KiB", "1.00 GiB"])
  assert.deepEqual([0, 999, 2e9, 3.35e12].map(format_bandwidth), ["0 B/s", "999 B/s", "2.00 GB/s", "3.35 TB/s"])
  assert.deepEqual([0, 0.0001, 0.0123, 0.0994, 0.0996, 0.385, 1].map(format_share),
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
