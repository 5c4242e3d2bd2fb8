import assert from "node:assert/strict"
import {test} from "node:test"
import {gzipSync} from "node:zlib"

import {decode, unpack} from "./decode"
import type {ArrayInfo, Header} from "./header"
import {DamagedData} from "./shapes"

type Column = {name: string, encoding: Header["columns"][number]["encoding"], stored: number[]}

/** A header of nothing. */
const EMPTY: Header = {
  version: 1, tick_ns: 1, start_ns: 0, end_ns: 0, rows: 0, names: [], categories: [], label: [], families: [], library: [], unlisted: [],
  shapes: [], tracks: [], columns: [], calls: null, lines: null, module_classes: {}, memory: null, arrays: [], panels: [], notes: [],
}

const TRACK = {kind: "cpu", label: "", process: "", thread: "", lane: 0, device: -1, stream: -1}

/** The format as views/encoding.py describes it. */
function payload_of(header: object, columns: Column[], arrays: {info: ArrayInfo, bytes: Uint8Array}[] = [], sent: object = {}): string {
  const width = 7
  const layout = columns.map(({name, encoding}) => ({name, encoding, width}))
  const whole = {...EMPTY, ...header, columns: layout, arrays: arrays.map(({info}) => info), ...sent}
  const text = new TextEncoder().encode(JSON.stringify(whole))
  const length = new Uint8Array(new Uint32Array([text.length]).buffer)
  const planes = columns.flatMap(({stored}) => Array.from({length: width}, (_, plane) =>
    stored.map((value) => Number(BigInt(value) >> BigInt(8*plane) & 255n))).flat())
  return gzipSync(Buffer.concat([length, text, Uint8Array.from(planes), ...arrays.map(({bytes}) => bytes)])).toString("base64")
}

async function decoded(columns: Column[], tracks: number[], header: object = {}): Promise<Record<string, number[]>> {
  const rows = columns[0].stored.length
  const all = {...header, rows, tracks: tracks.map((count) => ({...TRACK, rows: count}))}
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

const DAMAGED: [string, object, string][] = [
  ["more rows than bytes", {rows: 1000, tracks: [{...TRACK, rows: 1000}], columns: [{name: "ts", width: 7, encoding: "delta"}]}, "7000 bytes long"],
  ["arrays longer than the bytes", {arrays: [{length: 2 ** 26, width: 8, encoding: "float"}]}, "bytes long"],
  ["rows without end", {rows: 1e300}, "rows is not a whole number"],
  ["no number of rows", {rows: "7"}, "rows is not a whole number"],
  ["a track of more rows than there are", {tracks: [{...TRACK, rows: 1e15}]}, "tracks[0].rows"],
  ["tracks of fewer rows than there are", {rows: 3}, "tracks is not of 3 rows"],
  ["an encoding that nobody knows", {columns: [{name: "ts", width: 1, encoding: "constructor"}]}, "columns[0].encoding"],
  ["a call that is its own caller", {calls: [{parent: 0, name: "f", calls: 1, total_ns: 1, self_ns: 1, library: false}]}, "calls[0] is not after"],
  ["a label without a name", {label: [[0, 0]]}, "label[0][0]"],
  ["a name that is no text", {names: [{toString: 1}]}, "names[0] is not a text"],
  ["a note that is a model", {notes: [{type: "object", name: "CustomJS"}]}, "notes[0] is not a text"],
  ["a panel of an array that is not there", {panels: [panel_of(7)]}, "panels[0]"],
  ["a version to come", {version: 2}, "version"],
  ["arrays of no bytes", {arrays: [{length: 2 ** 26, width: 0, encoding: "plain"}]}, "arrays[0]"],
  ["a column that nobody knows", {columns: [{name: "__proto__", width: 1, encoding: "plain"}]}, "columns[0].name"],
  ["parents that point forwards", {columns: [{name: "parent", width: 1, encoding: "signed"}]}, "columns[0].encoding"],
  ["a unit that every object has", {panels: [{...panel_of(0), events: null, columns: [["a", "", "constructor", "", ""]], values: [[]]}]}, "panels[0].columns[0][2]"],
  ["no list of tracks", {tracks: null}, "tracks is not a list"],
]

function panel_of(count: number): object {
  return {name: "p", title: "", note: "", cut: false, sort: "", columns: [], length: 0, values: [], events: {count, of: {}}, curves: [], points: null, bars: null}
}

for (const [what, header, message] of DAMAGED) {
  test(`a payload with ${what} is refused`, async () => {
    const bytes = await unpack(payload_of({}, [], [], header))
    assert.throws(() => decode(bytes), (error) => error instanceof DamagedData && error.message.includes(message))
  })
}

test("a payload that unpacks to more than any page holds is refused before it fills the memory", async () => {
  const bomb = gzipSync(Buffer.alloc(2 ** 29 + 1)).toString("base64")
  assert.ok(bomb.length < 2 ** 20)
  await assert.rejects(unpack(bomb), DamagedData)
})
