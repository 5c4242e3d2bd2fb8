import assert from "node:assert/strict"
import {test} from "node:test"
import {gzipSync} from "node:zlib"

import {decode, unpack} from "./decode"
import type {ArrayInfo, Header} from "./header"

type Column = {name: string, encoding: Header["columns"][number]["encoding"], stored: number[]}

/** The format as views/encoding.py describes it. */
function payload_of(header: object, columns: Column[], arrays: {info: ArrayInfo, bytes: Uint8Array}[] = []): string {
  const width = 7
  const layout = columns.map(({name, encoding}) => ({name, encoding, width}))
  const text = new TextEncoder().encode(JSON.stringify({...header, columns: layout, arrays: arrays.map(({info}) => info)}))
  const length = new Uint8Array(new Uint32Array([text.length]).buffer)
  const planes = columns.flatMap(({stored}) => Array.from({length: width}, (_, plane) =>
    stored.map((value) => Number(BigInt(value) >> BigInt(8*plane) & 255n))).flat())
  return gzipSync(Buffer.concat([length, text, Uint8Array.from(planes), ...arrays.map(({bytes}) => bytes)])).toString("base64")
}

async function decoded(columns: Column[], tracks: number[], header: object = {}): Promise<Record<string, number[]>> {
  const rows = columns[0].stored.length
  const all = {...header, rows, tracks: tracks.map((count) => ({rows: count}))}
  const result = decode(await unpack(payload_of(all, columns)))
  return Object.fromEntries([...result.columns].map(([name, values]) => [name, Array.from(values)]))
}

test("plain numbers keep all of their bytes", async () => {
  const stored = [0, 1, 255, 256, 65536, 2**32 + 7, 2**53 - 1]
  assert.deepEqual(await decoded([{name: "dur", encoding: "plain", stored}], [7]), {dur: stored})
})

test("starts are sums of differences, anew on every track", async () => {
  const columns: Column[] = [{name: "ts", encoding: "delta", stored: [5, 2, 0, 2**40, 3, 1]}]
  assert.deepEqual(await decoded(columns, [4, 0, 2]), {ts: [5, 7, 7, 2**40 + 7, 3, 4]})
})

test("links are steps from the row named last, and none", async () => {
  const columns: Column[] = [{name: "owner", encoding: "link", stored: [0, 1 + 2*4, 0, 1 + 1, 1, 1 + 2*300]}]
  assert.deepEqual(await decoded(columns, [6]), {owner: [-1, 4, -1, 3, 3, 303]})
})

test("released bytes are negative", async () => {
  const columns: Column[] = [{name: "bytes", encoding: "signed", stored: [0, 1, 2, 3, 2*(2**40)]}]
  assert.deepEqual(await decoded(columns, [5]), {bytes: [0, -1, 1, -2, 2**40]})
})

test("hostile names are text", async () => {
  const names = ["</script><script>alert(1)</script>", "__proto__", "\u2028\u0000\"'\\", "日本語"]
  const result = decode(await unpack(payload_of({names, rows: 0, tracks: []}, [])))
  assert.deepEqual(result.header.names, names)
})

test("arrays behind the columns have lengths of their own", async () => {
  const arrays: {info: ArrayInfo, bytes: Uint8Array}[] = [
    {info: {length: 3, width: 2, encoding: "plain"}, bytes: Uint8Array.of(1, 2, 3, 0, 1, 0)},
    {info: {length: 4, width: 1, encoding: "signed"}, bytes: Uint8Array.of(0, 1, 2, 3)},
    {info: {length: 3, width: 1, encoding: "steps"}, bytes: Uint8Array.of(10, 4, 1)},
    {info: {length: 0, width: 1, encoding: "plain"}, bytes: Uint8Array.of()},
    {info: {length: 2, width: 8, encoding: "float"}, bytes: new Uint8Array(Float64Array.of(0.1, -1e300).buffer)},
  ]
  const result = decode(await unpack(payload_of({rows: 0, tracks: []}, [], arrays)))
  assert.deepEqual(result.arrays.map((values) => [...values]), [[1, 2 + 256, 3], [0, -1, 1, -2], [5, 7, 6], [], [0.1, -1e300]])
})
