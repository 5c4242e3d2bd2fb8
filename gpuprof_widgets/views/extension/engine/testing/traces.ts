/** Hand-made and random traces for the tests: rows as objects, put together as the page gets them. */

import type {Header, TrackInfo, TrackKind} from "../header"
import {Store} from "../store"

export type Row = {
  ts: number
  dur: number
  name: string
  category?: string
  track?: number
  /** index of the launching row among the arguments */
  owner?: number
  forward?: number
  shape?: string
  bytes?: number
  device_bytes?: number
  flops?: number
  count?: number
}

export type Options = {
  kinds?: TrackKind[]
  tick_ns?: number
  end_ns?: number
  calls?: Header["calls"]
  unlisted?: string[]
  library?: string[]
  lines?: (label: Header["label"], names: string[], categories: string[]) => Header["lines"]
}

const CATEGORY_OF_KIND: Record<TrackKind, string> = {
  cpu: "cpu_op", python: "python_function", worker: "worker", annotation: "gpu_user_annotation", gpu: "kernel", copy: "gpu_memcpy", other: "other",
}

/** The store of some rows; `kinds` are those of the tracks 0, 1, ... (the CPU alone by default). */
export function store_of(rows: Row[], options: Options = {}): Store {
  const kinds = options.kinds ?? ["cpu"]
  const order = rows.map((_, i) => i)
  order.sort((a, b) => (rows[a].track ?? 0) - (rows[b].track ?? 0) || rows[a].ts - rows[b].ts || rows[b].dur - rows[a].dur || a - b)
  const sorted = order.map((i) => rows[i])
  const position = new Map(order.map((given, row) => [given, row]))
  const row_of = (given: number | undefined): number => given == null ? -1 : position.get(given)!
  const category_of = (row: Row): string => row.category ?? CATEGORY_OF_KIND[kinds[row.track ?? 0]]
  const names = [...new Set(sorted.map(({name}) => name))]
  const categories = [...new Set(sorted.map(category_of))]
  const shapes = [...new Set(sorted.flatMap(({shape}) => shape ?? []))]
  const pairs = [...new Set(sorted.map((row) => `${names.indexOf(row.name)} ${categories.indexOf(category_of(row))}`))]
  const label = pairs.map((pair) => pair.split(" ").map(Number) as [number, number])
  const labels_of = (wanted: string[] = []): number[] => label.flatMap(([name], i) => wanted.includes(names[name]) ? [i] : [])
  const header: Header = {
    version: 1, tick_ns: options.tick_ns ?? 1, start_ns: 0,
    end_ns: options.end_ns ?? rows.reduce((end, {ts, dur}) => Math.max(end, ts + dur), 0)*(options.tick_ns ?? 1),
    rows: rows.length, names, categories, label, shapes, columns: [], calls: options.calls ?? null, notes: [],
    module_classes: {}, lines: options.lines?.(label, names, categories) ?? null,
    memory: null, arrays: [], panels: [],
    families: label.map(() => -1),
    library: labels_of(options.library),
    unlisted: labels_of(options.unlisted),
    tracks: kinds.map((kind, track) => track_of(kind, track, sorted.filter((row) => (row.track ?? 0) == track).length)),
  }
  const column = (value: (row: Row) => number): Float64Array => Float64Array.from(sorted, value)
  return Store.of_columns(header, new Map([
    ["ts", column(({ts}) => ts)],
    ["dur", column(({dur}) => dur)],
    ["label", column((row) => pairs.indexOf(`${names.indexOf(row.name)} ${categories.indexOf(category_of(row))}`))],
    ["owner", column(({owner}) => row_of(owner))],
    ["forward", column(({forward}) => row_of(forward))],
    ["shape", column(({shape}) => shape == null ? 0 : shapes.indexOf(shape) + 1)],
    ["bytes", column(({bytes}) => bytes ?? 0)],
    ["device_bytes", column(({device_bytes}) => device_bytes ?? 0)],
    ["flops", column(({flops}) => flops ?? 0)],
    ["count", column(({count}) => count ?? 1)],
  ]))
}

/** A track of Python frames belongs to the thread of the track before it. */
function track_of(kind: TrackKind, track: number, rows: number): TrackInfo {
  const on_gpu = kind == "gpu" || kind == "copy" || kind == "annotation"
  const lane = kind == "python" ? track - 1 : track
  return {kind, label: `${kind} ${track}`, process: "1", thread: String(lane), lane, device: on_gpu ? 0 : -1,
    stream: on_gpu ? track : -1, rows}
}

/** The row with a name, which has to be the only one. */
export function row_named(store: Store, name: string): number {
  const rows = Array.from({length: store.rows}, (_, row) => row).filter((row) => store.name(row) == name)
  if (rows.length != 1) {
    throw new Error(`${rows.length} rows have the name ${name}`)
  }
  return rows[0]
}

/** Random numbers that are the same in every run (mulberry32). */
export function random(seed: number): () => number {
  return () => {
    seed = (seed + 0x6D2B79F5) | 0
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0)/2**32
  }
}

/** Random integers from 0 on, below a limit. */
export function random_integers(seed: number): (limit: number) => number {
  const next = random(seed)
  return (limit) => Math.floor(next()*limit)
}

/** Ops and kernels that nest, cross, touch and repeat at random in [0, 200], with few names. */
function random_rows(seed: number): Row[] {
  const below = random_integers(seed)
  const rows: Row[] = []
  for (let i = 0; i < 40; i++) {
    rows.push({ts: below(180), dur: below(3) == 0 ? below(4) : below(20), name: `f${below(4)}`})
  }
  for (let i = 0; i < 20; i++) {
    rows.push({ts: below(180), dur: below(20), name: `k${below(3)}`, track: 1, owner: below(4) == 0 ? undefined : below(40)})
  }
  return rows
}

export function random_store(seed: number): Store {
  return store_of(random_rows(seed), {kinds: ["cpu", "gpu"], end_ns: 200})
}

export const SEEDS = Array.from({length: 25}, (_, seed) => seed)

export const RANDOM_STORES = SEEDS.map(random_store)
