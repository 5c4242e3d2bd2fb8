/** Times of the engine on traces of 200,000 events or on a payload: npm run bench [-- FILE]. */

import {readFileSync} from "node:fs"

import {totals} from "./device_time"
import {flame} from "./flame"
import {level_of_detail} from "./lod"
import {op_table} from "./op_table"
import {Store} from "./store"
import {random, store_of, type Row} from "./testing/traces"

const PIXELS = 1200

/** Steps of nested ops, each of which launches a kernel. */
function training(events: number): Store {
  const next = random(1)
  const rows: Row[] = []
  for (let ts = 0; rows.length < events; ts += 1000) {
    const name = `op${Math.floor(next()*100)}`
    rows.push({ts, dur: 900, name}, {ts: ts + 100, dur: 700, name: `${name}_impl`},
      {ts: ts + 200, dur: 300, name: "cudaLaunchKernel", category: "cuda_runtime"})
    rows.push({ts: ts + 5000, dur: 200 + Math.floor(next()*700), name: `kernel${Math.floor(next()*60)}`, track: 1})
  }
  return store_of(rows, {kinds: ["cpu", "gpu"]})
}

function report(question: string, run: () => unknown): void {
  const times: number[] = []
  for (let i = 0; i < 15; i++) {
    const start = performance.now()
    run()
    times.push(performance.now() - start)
  }
  const sorted = times.slice(1).sort((a, b) => a - b)
  console.log(`${question.padEnd(40)} first ${ms(times[0])}, then ${ms(sorted[0])} to ${ms(sorted[7])} (median)`)
}

function ms(time: number): string {
  return `${time.toFixed(1).padStart(6)} ms`
}

function visit_lanes(store: Store, start: number, end: number): void {
  store.header.tracks.forEach((_, track) => {
    for (let level = 0; level < store.levels(track); level++) {
      level_of_detail(store, track, level, start, end, PIXELS)
    }
  })
}

async function open(path: string): Promise<Store> {
  const text = readFileSync(path, "utf8")
  const start = performance.now()
  const store = await Store.decode(text)
  console.log(`decode ${(text.length/1e6).toFixed(2)} MB: ${(performance.now() - start).toFixed(0)} ms`)
  return store
}

const [path] = process.argv.slice(2)
const store = path == null ? training(200_000) : await open(path)
const {whole} = store
const tenth = {start: Math.round(whole.end*0.4), end: Math.round(whole.end*0.5)}
console.log(`${store.rows} events on ${store.header.tracks.length} tracks`)
report("level of detail, all lanes, whole", () => visit_lanes(store, whole.start, whole.end))
report("level of detail, all lanes, a tenth", () => visit_lanes(store, tenth.start, tenth.end))
report("op table, whole", () => op_table(store, whole, "name"))
report("op table, a tenth", () => op_table(store, tenth, "name"))
report("op table by shape, a tenth", () => op_table(store, tenth, "name_shape"))
report("flame graph of ops, whole", () => flame(store, whole, "ops"))
report("flame graph of ops, a tenth", () => flame(store, tenth, "ops"))
report("flame graph of ops and Python, a tenth", () => flame(store, tenth, "merged"))
report("totals, a tenth", () => totals(store, tenth))
