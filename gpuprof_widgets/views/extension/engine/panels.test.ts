import assert from "node:assert/strict"
import {test} from "node:test"

import type {Window} from "./columns"
import type {PanelHeader} from "./header"
import {PanelData} from "./panels"
import {Store} from "./store"
import {random_integers, SEEDS, store_of} from "./testing/traces"

type Event = {group: number, start: number, end: number, row?: number, track?: number, bytes?: number}
type Columns = PanelHeader["columns"]

const COLUMNS: Columns = [
  ["name", "Name", "text", "", ""], ["calls", "Calls", "count", "count", ""], ["time", "Time", "ns", "time", ""],
  ["covered", "Covered", "ns", "covered", ""], ["mean", "Mean", "ns", "mean", ""], ["min", "Min", "ns", "min", ""],
  ["max", "Max", "ns", "max", ""], ["bytes", "Bytes", "bytes", "sum", "bytes"], ["share", "Share", "share", "share", "time"],
  ["rate", "Rate", "bytes/s", "ratio", "bytes/time"], ["whole", "Whole", "ns", "", ""],
]

/** A panel with some of a header's fields, over arrays and the slices of a store. */
function panel_with(header: Partial<PanelHeader>, arrays: Float64Array[], slices: Store = store_of([], {end_ns: 100})): PanelData {
  return new PanelData(new Store(slices.header, slices.columns, arrays), {
    name: "test", title: "Test", note: "", sort: "", columns: [], length: 2, cut: false, values: [], curves: [], points: null, bars: null,
    events: null, ...header,
  })
}

/** A panel of rows a, b, ... as Python sends it. */
function panel_of(events: Event[], rows: number, columns: Columns = COLUMNS, slices?: Store): PanelData {
  const sorted = [...events].sort((a, b) => a.start - b.start || a.end - b.end)
  const column = (value: (event: Event) => number): Float64Array => Float64Array.from(sorted, value)
  const steps = Float64Array.from(sorted, ({start}, i) => start - (sorted[i - 1]?.end ?? 0))
  const arrays = [
    column(({group}) => group), column(({row}) => row ?? -1), steps, column(({start, end}) => end - start),
    column(({track}) => (track ?? -1) + 1), column(({bytes}) => bytes ?? 0),
  ]
  const values = columns.map(([key]) => Array.from({length: rows}, (_, row) => key == "name" ? "abcdefgh"[row] : 1000 + row))
  return panel_with({columns, length: rows, values, events: {group: 0, row: 1, start: 2, dur: 3, track: 4, of: {bytes: 5}}}, arrays, slices)
}

const EVENTS: Event[] = [
  {group: 0, start: 0, end: 10, bytes: 4}, {group: 0, start: 5, end: 25, bytes: 6}, {group: 1, start: 30, end: 40, bytes: 8},
]

function numbers(panel: PanelData, window: Window | null, key: string): unknown[] {
  return panel.values(window)[panel.at(key)]
}

test("without a range the numbers are those that Python computed", () => {
  assert.deepEqual(numbers(panel_of(EVENTS, 2), null, "time"), [1000, 1001])
})

test("in a range events count with the time that they have in it", () => {
  const panel = panel_of(EVENTS, 2)
  const window = {start: 8, end: 32}
  assert.deepEqual(numbers(panel, window, "calls"), [2, 1])
  assert.deepEqual(numbers(panel, window, "time"), [2 + 17, 2])
  assert.deepEqual(numbers(panel, window, "covered"), [17, 2])
  assert.deepEqual(numbers(panel, window, "mean"), [19/2, 2])
  assert.deepEqual(numbers(panel, window, "min"), [2, 2])
  assert.deepEqual(numbers(panel, window, "max"), [17, 2])
  assert.deepEqual(numbers(panel, window, "bytes"), [10, 8])
  assert.deepEqual(numbers(panel, window, "share"), [19/21, 2/21])
  assert.deepEqual(numbers(panel, window, "rate"), [10/19*1e9, 8/2*1e9])
})

test("what does not follow from the events stays that of the whole run", () => {
  const panel = panel_of(EVENTS, 2)
  assert.deepEqual(numbers(panel, {start: 8, end: 32}, "whole"), [1000, 1001])
  const known = panel.columns.filter((column) => panel.follows(column)).map(({key}) => key)
  assert.deepEqual(known, COLUMNS.map(([key]) => key).filter((key) => key != "name" && key != "whole"))
  const of_the_run = panel_of(EVENTS, 2, [["whole", "Whole", "ns", "", ""], ["share", "Share", "share", "share", "whole"]])
  assert.equal(of_the_run.follows(of_the_run.columns[1]), false)
})

test("a row of which nothing lies in the range is not there", () => {
  const panel = panel_of(EVENTS, 3)
  assert.deepEqual([...panel.present({start: 26, end: 40})], [0, 1, 0])
  assert.deepEqual(numbers(panel, {start: 26, end: 40}, "mean"), [null, 10, null])
  assert.deepEqual(numbers(panel, {start: 26, end: 40}, "bytes"), [0, 8, 0])
})

test("shares may be of the rows of one device", () => {
  const columns: Columns = [
    ["time", "Time", "ns", "time", ""], ["device", "Device", "count", "", ""], ["share", "Share", "share", "share", "time/device"],
  ]
  const panel = panel_of([{group: 0, start: 0, end: 10}, {group: 1, start: 0, end: 30}, {group: 2, start: 0, end: 7}], 3, columns)
  const devices = panel.values(null)[1]
  devices.splice(0, 3, 0, 0, 1)
  assert.deepEqual(numbers(panel, {start: 0, end: 100}, "share"), [0.25, 0.75, 1])
})

test("an event without length belongs to the range in which it starts, the last one to the end", () => {
  const panel = panel_of([{group: 0, start: 10, end: 10}, {group: 0, start: 100, end: 100}], 1)
  assert.deepEqual(numbers(panel, {start: 0, end: 10}, "calls"), [0])
  assert.deepEqual(numbers(panel, {start: 10, end: 11}, "calls"), [1])
  assert.deepEqual(numbers(panel, {start: 90, end: 100}, "calls"), [1])
})

test("where only the longest events are known, every row is there in any range", () => {
  const panel = panel_with({columns: [["time", "Time", "ns", "", ""]], cut: true, values: [[9, 8]], events: {group: 0, start: 1, dur: 2, of: {}}},
    [Float64Array.of(0), Float64Array.of(10), Float64Array.of(5)])
  assert.deepEqual([...panel.present({start: 50, end: 60})], [1, 1])
  assert.deepEqual(panel.values({start: 50, end: 60}), [[9, 8]])
})

test("slices and ranges of a row are told apart, and rows are found by their slices", () => {
  const slices = store_of([{ts: 0, dur: 10, name: "x"}, {ts: 20, dur: 5, name: "y"}], {end_ns: 100})
  const events: Event[] = [
    {group: 0, start: 20, end: 25, row: 1}, {group: 0, start: 50, end: 90, track: 0}, {group: 1, start: 0, end: 10, row: 0},
  ]
  const panel = panel_of(events, 2, COLUMNS, slices)
  assert.deepEqual([...panel.slices(0)], [1])
  assert.deepEqual(panel.ranges(0), [[50, 90, 0]])
  assert.deepEqual(panel.longest(0), [[50, 90], [20, 25]])
  assert.deepEqual(panel.holding([0]), [1])
  assert.deepEqual(panel.holding([1, 0]), [0, 1])
  assert.deepEqual(panel.holding([]), [])
})

test("events that are slices stand by their rows and take their times from the slices", () => {
  const slices = store_of([{ts: 0, dur: 10, name: "x"}, {ts: 20, dur: 5, name: "y"}, {ts: 30, dur: 1, name: "x"}], {end_ns: 100})
  const columns: Columns = [["calls", "Calls", "count", "count", ""], ["time", "Time", "ns", "time", ""]]
  const panel = panel_with({columns, values: [[2, 1], [11, 5]], events: {count: 0, row: 1, of: {}}},
    [Float64Array.of(2, 1), Float64Array.of(0, 2, 1)], slices)
  assert.deepEqual(panel.values({start: 5, end: 31}), [[2, 1], [5 + 1, 5]])
  assert.deepEqual([...panel.slices(0)], [0, 2])
})

for (const seed of SEEDS.slice(0, 10)) {
  test(`any range gives what counting every nanosecond gives (${seed})`, () => {
    const below = random_integers(seed)
    const events = Array.from({length: 30}, (): Event => {
      const start = below(90)
      return {group: below(4), start, end: start + 1 + below(10), bytes: below(50)}
    })
    const panel = panel_of(events, 4)
    const start = below(80)
    const window = {start, end: start + 1 + below(100 - start - 1)}
    for (let group = 0; group < 4; group++) {
      const of_group = events.filter((event) => event.group == group)
      const running = (ns: number): Event[] => of_group.filter((event) => event.start <= ns && event.end > ns)
      let time = 0
      let covered = 0
      const seen = new Set<Event>()
      for (let ns = window.start; ns < window.end; ns++) {
        time += running(ns).length
        covered += Number(running(ns).length > 0)
        running(ns).forEach((event) => seen.add(event))
      }
      assert.equal(numbers(panel, window, "time")[group], time)
      assert.equal(numbers(panel, window, "covered")[group], covered)
      assert.equal(numbers(panel, window, "calls")[group], seen.size)
      assert.equal(numbers(panel, window, "bytes")[group], [...seen].reduce((sum, {bytes}) => sum + bytes!, 0))
      assert.equal(panel.present(window)[group], Number(seen.size > 0))
    }
  })
}
