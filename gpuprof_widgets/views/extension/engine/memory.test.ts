import assert from "node:assert/strict"
import {test} from "node:test"

import type {MemoryHeader} from "./header"
import {Memory} from "./memory"
import {random_integers, SEEDS} from "./testing/traces"

type Life = {start: number, end: number, bytes: number, category: number}

/** What Python would send of these lives; -1 for before or after the record. */
function header_of(lives: Life[], reserved: [number, number][] = []): MemoryHeader {
  const changes = lives.flatMap(({start, end, bytes, category}) => [
    {ts: Math.max(start, 0), category, bytes}, ...end < 0 ? [] : [{ts: end, category, bytes: -bytes}],
  ]).sort((a, b) => a.ts - b.ts)
  const steps = (values: number[]): number[] => values.map((value, i) => value - (values[i - 1] ?? 0))
  const zeros = lives.map(() => 0)
  return {
    categories: ["parameters", "activations", "temporaries"],
    devices: [{
      name: "CPU", exact: true, ts: steps(changes.map(({ts}) => ts)), category: changes.map(({category}) => category),
      bytes: changes.map(({bytes}) => bytes), reserved_ts: steps(reserved.map(([ts]) => ts)), reserved: reserved.map(([, bytes]) => bytes),
    }],
    blocks: {
      device: zeros, start: lives.map(({start}) => start), dur: lives.map(({start, end}) => end < 0 ? -1 : end - Math.max(start, 0)),
      bytes: lives.map(({bytes}) => bytes), category: lives.map(({category}) => category), op_name: zeros, module_name: zeros,
      line_name: zeros, tensor: zeros, names: [""], op: zeros, row: zeros, release: zeros, left_out: 0,
    },
  }
}

const LIVES: Life[] = [
  {start: -1, end: -1, bytes: 100, category: 0},
  {start: 10, end: 50, bytes: 30, category: 1},
  {start: 20, end: 21, bytes: 500, category: 2},
  {start: 30, end: -1, bytes: 7, category: 1},
]

test("the stack at a time is what was alive then", () => {
  const [device] = new Memory(header_of(LIVES)).devices
  const stack = (ns: number): number[] => [...device.stack(device.at(ns))]
  assert.deepEqual(stack(-1), [0, 0, 0])
  assert.deepEqual(stack(0), [100, 0, 0])
  assert.deepEqual(stack(20), [100, 30, 500])
  assert.deepEqual(stack(21), [100, 30, 0])
  assert.deepEqual(stack(1000), [100, 7, 0])
  assert.equal(device.total_at(35), 137)
})

test("what is reserved holds until it changes, also before the first reading", () => {
  const [device] = new Memory(header_of(LIVES, [[20, 600], [40, 900]])).devices
  assert.deepEqual([0, 20, 39, 40, 99].map((ns) => device.reserved_at(ns)), [600, 600, 600, 900, 900])
  assert.equal(device.most, 900)
  assert.equal(new Memory(header_of(LIVES)).devices[0].reserved_at(20), null)
})

test("a peak narrower than a pixel is still drawn", () => {
  const [device] = new Memory(header_of(LIVES)).devices
  const totals = [...device.pixels(0, 1000, 10)].map((moment) => device.totals[moment])
  assert.deepEqual(totals, [630, ...new Array(9).fill(107) as number[]])
  assert.equal(device.moments[device.fullest(0, 1000)], 20)
})

test("a pixel that lies between two changes shows the one before it", () => {
  const [device] = new Memory(header_of(LIVES)).devices
  assert.deepEqual([...device.pixels(31, 49, 3)].map((moment) => device.totals[moment]), [137, 137, 137])
})

test("the biggest blocks of a range come first, and only those alive in it", () => {
  const memory = new Memory(header_of(LIVES))
  const sizes = (start: number, end: number): number[] => memory.living(0, start, end).map(({bytes}) => bytes)
  assert.deepEqual(sizes(0, 100), [500, 100, 30, 7])
  assert.deepEqual(sizes(21, 29), [100, 30])
  assert.deepEqual(sizes(50, 60), [100, 7])
})

test("a height of the stack belongs to a category and to the block there", () => {
  const memory = new Memory(header_of(LIVES))
  const at = (ns: number, height: number): [number, number | undefined] | null => {
    const pointed = memory.hit(0, ns, height)
    return pointed == null ? null : [pointed.category, pointed.block?.bytes]
  }
  assert.deepEqual(at(35, 99), [0, 100])
  assert.deepEqual(at(35, 100), [1, 30])
  assert.deepEqual(at(35, 131), [1, 7])
  assert.equal(at(35, 137), null)
  assert.equal(at(35, -1), null)
})

for (const seed of SEEDS) {
  test(`random lives ${seed}: stacks, totals and hits agree with counting`, () => {
    const below = random_integers(seed)
    const lives = Array.from({length: 12}, (): Life => {
      const start = below(40) - 1
      return {start, end: below(3) == 0 ? -1 : Math.max(start, 0) + 1 + below(20), bytes: 1 + below(50), category: below(3)}
    })
    const memory = new Memory(header_of(lives))
    const [device] = memory.devices
    for (let ns = 0; ns < 70; ns++) {
      const alive = lives.filter(({start, end}) => start <= ns && (end < 0 || end > ns))
      const expected = [0, 1, 2].map((category) =>
        alive.filter((life) => life.category == category).reduce((sum, {bytes}) => sum + bytes, 0))
      assert.deepEqual([...device.stack(device.at(ns))], expected)
      const total = expected.reduce((sum, bytes) => sum + bytes, 0)
      assert.equal(device.total_at(ns), total)
      const hit = Array.from({length: total}, (_, height) => memory.hit(0, ns, height)!.block!.index)
      assert.deepEqual([...new Set(hit)].map((index) => hit.filter((other) => other == index).length).sort(),
        alive.map(({bytes}) => bytes).sort())
    }
  })
}
