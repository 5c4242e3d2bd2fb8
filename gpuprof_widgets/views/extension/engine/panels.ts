/** The panels of the analyses: the events behind each row of a table, and its numbers in any range of time. */

import type {Window} from "./columns"
import type {Aggregate, Cell, PanelHeader, Unit} from "./header"
import {innermost} from "./nest"
import {NONE, overlap, type Store} from "./store"

export type PanelColumn = {key: string, label: string, unit: Unit, aggregate: Aggregate, of: string}
/** A quantity that keeps its value until it changes; times in ns. */
export type PanelCurve = {name: string, unit: Unit, ts: Float64Array, value: Float64Array, exact: boolean}

/** The events behind the rows, by row and start; times in ticks. */
type Events = {
  /** first event of each row, and at the end the number of events */
  first: Uint32Array
  start: Float64Array
  end: Float64Array
  /** slice of each event, -1 for none */
  row: Int32Array
  /** track of each event that is no slice, -1 where it is of no track in particular */
  track: Int32Array
  of: Map<string, Float64Array>
}

const DERIVED: Aggregate[] = ["share", "ratio"]
/** Texts that are enough to tell a row. */
const MOST_TEXTS = 3

export class PanelData {
  readonly name: string
  readonly title: string
  readonly note: string
  readonly sort: string
  readonly columns: PanelColumn[]
  readonly length: number
  /** whether only the longest events are known: they do not tell what lies in a range */
  readonly cut: boolean
  readonly curves: PanelCurve[]
  readonly points: PanelHeader["points"]
  readonly bars: PanelHeader["bars"]
  /** whether the events behind the rows are known */
  readonly has_events: boolean
  private readonly whole: Cell[][]
  private known_events: Events | null = null

  constructor(private readonly store: Store, private readonly header: PanelHeader) {
    this.name = header.name
    this.title = header.title
    this.note = header.note
    this.sort = header.sort
    this.columns = header.columns.map(([key, label, unit, aggregate, of]) => ({key, label, unit, aggregate, of}))
    this.length = header.length
    this.cut = header.cut
    this.points = header.points
    this.bars = header.bars
    this.whole = header.values
    this.curves = header.curves.map(({ts, value, ...rest}) => ({...rest, ts: store.arrays[ts], value: store.arrays[value]}))
    this.has_events = header.events != null
  }

  /** The events, put together when they are first asked for. */
  get events(): Events | null {
    const {header, store} = this
    if (this.known_events == null && header.events != null) {
      this.known_events = events_of(store, header.events, header.length)
    }
    return this.known_events
  }

  /** Returns the position of a column, -1 where there is none of that name. */
  at(key: string): number {
    return this.columns.findIndex((column) => column.key == key)
  }

  /** Returns the name of a row: its first text. */
  row_name(row: number): string {
    const at = this.columns.findIndex(({unit}) => unit == "text")
    return at < 0 ? this.title : String(this.whole[at][row])
  }

  /** Returns the texts that tell a row from all others; the title where it has none. */
  row_text(row: number): string {
    const texts = this.columns.flatMap(({unit}, at) => unit == "text" && this.whole[at][row] ? [String(this.whole[at][row]).trim()] : [])
    return texts.length == 0 ? this.title : texts.slice(0, MOST_TEXTS).join(" · ")
  }

  /** Whether the numbers of a column follow a range; the others are known of the whole run alone. */
  follows(column: PanelColumn): boolean {
    if (!this.has_events || column.aggregate == "") {
      return false
    }
    return !DERIVED.includes(column.aggregate) || this.sources(column).every((source) => source >= 0 && this.follows(this.columns[source]))
  }

  /** Returns for each row whether any of its events lies in a range; 1 for all rows where not all events are known. */
  present(window: Window): Uint8Array {
    const {events} = this
    const present = new Uint8Array(this.length)
    if (this.cut || events == null) {
      return present.fill(1)
    }
    const inside = this.inside(window)
    for (let row = 0; row < this.length; row++) {
      for (let i = events.first[row]; i < events.first[row + 1] && present[row] == 0; i++) {
        present[row] = inside[i]
      }
    }
    return present
  }

  /** Returns values by column and row: those of the whole run (null), or of a range as far as they follow from its events. */
  values(window: Window | null): Cell[][] {
    if (window == null || !this.has_events) {
      return this.whole
    }
    const inside = this.inside(window)
    const values = this.columns.map((column, at) => this.follows(column) && !DERIVED.includes(column.aggregate)
      ? this.aggregated(column, window, inside) : this.whole[at])
    this.columns.forEach((column, at) => {
      if (this.follows(column) && DERIVED.includes(column.aggregate)) {
        values[at] = this.derived(column, values)
      }
    })
    return values
  }

  /** Returns a mask of the events that lie in a range. */
  private inside(window: Window): Uint8Array {
    const {start, end, row} = this.events!
    const {count} = this.store
    const inside = new Uint8Array(start.length)
    for (let i = 0; i < inside.length; i++) {
      inside[i] = Number((row[i] < 0 || count[row[i]] > 0) && this.store.overlaps(start[i], end[i], window))
    }
    return inside
  }

  private aggregated({aggregate, of}: PanelColumn, window: Window, inside: Uint8Array): Cell[] {
    const {first, start, end, of: quantities} = this.events!
    const quantity = of == "" ? null : quantities.get(of)!
    const value = (i: number): number => quantity == null || aggregate == "time" ? this.time(i, window) : quantity[i]
    const cells: Cell[] = []
    for (let row = 0; row < this.length; row++) {
      const sums = new Aggregated()
      let until = window.start
      for (let i = first[row]; i < first[row + 1]; i++) {
        if (inside[i] == 1) {
          // Of events by start: the time in which at least one of them ran.
          sums.covered += Math.max(Math.min(end[i], window.end) - Math.max(start[i], until), 0)
          until = Math.max(until, end[i])
          sums.add(value(i))
        }
      }
      cells.push(aggregate == "covered" ? this.store.ns(sums.covered) : sums.value(aggregate))
    }
    return cells
  }

  /** Returns the columns from which a derived one is computed. */
  private sources({aggregate, of}: PanelColumn): number[] {
    const [first, second] = of.split("/")
    return (aggregate == "ratio" ? [first, second] : [first]).map((key) => this.at(key))
  }

  private derived(column: PanelColumn, values: Cell[][]): Cell[] {
    if (column.aggregate == "ratio") {
      const [above, below] = this.sources(column).map((source) => values[source])
      const scale = column.unit.endsWith("/s") ? 1e9 : 1
      return above.map((value, row) => Number(below[row]) == 0 ? null : scale*Number(value)/Number(below[row]))
    }
    const [parts] = this.sources(column).map((source) => values[source].map(Number))
    const among = (column.of.split("/")[1] ?? "").split(",").flatMap((key) => this.at(key) < 0 ? [] : [values[this.at(key)]])
    const group = parts.map((_, row) => JSON.stringify(among.map((known) => known[row])))
    const sums = new Map<string, number>()
    parts.forEach((part, row) => sums.set(group[row], (sums.get(group[row]) ?? 0) + part))
    return parts.map((part, row) => sums.get(group[row]) == 0 ? 0 : part/sums.get(group[row])!)
  }

  /** Returns the positions of a row's events. */
  private events_of(row: number): number[] {
    const first = this.events?.first
    return first == null ? [] : Array.from({length: first[row + 1] - first[row]}, (_, i) => first[row] + i)
  }

  /** Returns the time of an event inside a range, ns. */
  private time(i: number, window: Window): number {
    return this.store.ns(overlap(this.events!.start[i], this.events!.end[i], window))
  }

  /** Returns the slices of a row, in order. */
  slices(row: number): Int32Array {
    return Int32Array.from(this.events_of(row), (i) => this.events!.row[i]).filter((slice) => slice >= 0).sort()
  }

  /** Returns the events of a row that are no slices: start and end (ns) and track, -1 for none in particular. */
  ranges(row: number): [number, number, number][] {
    const {events} = this
    return this.events_of(row).filter((i) => events!.row[i] < 0).map((i) => [...this.span(i), events!.track[i]])
  }

  /** Returns start and end (ns) of a row's events, the longest first. */
  longest(row: number): [number, number][] {
    return this.events_of(row).map((i) => this.span(i)).sort((a, b) => (b[1] - b[0]) - (a[1] - a[0]) || a[0] - b[0])
  }

  private span(i: number): [number, number] {
    return [this.store.ns(this.events!.start[i]), this.store.ns(this.events!.end[i])]
  }

  /** Returns the rows that hold any of some slices. */
  holding(slices: ArrayLike<number>): number[] {
    const wanted = this.store.mask_of(slices)
    const rows = Array.from({length: slices.length == 0 ? 0 : this.length}, (_, row) => row)
    return rows.filter((row) => this.events_of(row).some((i) => wanted[this.events!.row[i]] == 1))
  }
}

/** Returns a panel of the record, put together when it is first asked for. */
export function panel(store: Store, name: string): PanelData | null {
  const header = store.header.panels.find((other) => other.name == name)
  return header == null ? null : store.lazily(`panel ${name}`, () => new PanelData(store, header))
}

function events_of(store: Store, header: NonNullable<PanelHeader["events"]>, length: number): Events {
  const {arrays} = store
  if (header.frames != null) {
    return stretches_of(store, arrays[header.frames], header.tracks!, length)
  }
  const array = (at: number | undefined): Float64Array | null => at == null ? null : arrays[at]
  const counts = array(header.count) ?? counted(arrays[header.group!], length)
  const first = firsts(counts)
  const order = header.group == null ? null : by_group(arrays[header.group], first)
  const placed = (values: Float64Array): Float64Array => order == null ? values : Float64Array.from(order, (i) => values[i])
  const of_slices = (values: Float64Array | null, none: number): Int32Array =>
    values == null ? new Int32Array(first[length]).fill(none) : Int32Array.from(placed(values))
  const row = of_slices(array(header.row), NONE)
  const times = header.start == null || header.dur == null ? null : ranges_of(arrays[header.start], arrays[header.dur])
  return {
    first, row,
    start: times == null ? Float64Array.from(row, (slice) => store.ts[slice]) : placed(times.start),
    end: times == null ? Float64Array.from(row, (slice) => store.end[slice]) : placed(times.end),
    track: of_slices(array(header.track), 0).map((number) => number - 1),
    of: new Map(Object.entries(header.of).map(([key, at]) => [key, placed(arrays[at])])),
  }
}

/** Returns as events the stretches in which the slices of some labels were innermost; `frames`: the row + 1 of each label. */
function stretches_of(store: Store, frames: Float64Array, tracks: readonly number[], length: number): Events {
  const stretches: Record<"slice" | "start" | "end" | "group", number[]> = {slice: [], start: [], end: [], group: []}
  for (const track of tracks) {
    innermost(store, track, (slice, start, end) => {
      const frame = frames[store.label[slice]]
      if (frame > 0) {
        stretches.slice.push(slice)
        stretches.start.push(start)
        stretches.end.push(end)
        stretches.group.push(frame - 1)
      }
    })
  }
  const first = firsts(counted(stretches.group, length))
  const order = by_group(stretches.group, first)
  return {
    first,
    row: Int32Array.from(order, (i) => stretches.slice[i]),
    start: Float64Array.from(order, (i) => stretches.start[i]),
    end: Float64Array.from(order, (i) => stretches.end[i]),
    track: new Int32Array(order.length).fill(NONE),
    of: new Map(),
  }
}

/** Returns the first event of each row, and at the end the number of events. */
function firsts(counts: Float64Array): Uint32Array {
  const first = new Uint32Array(counts.length + 1)
  counts.forEach((count, row) => { first[row + 1] = first[row] + count })
  return first
}

function counted(group: ArrayLike<number>, length: number): Float64Array {
  const counts = new Float64Array(length)
  for (let i = 0; i < group.length; i++) {
    counts[group[i]] += 1
  }
  return counts
}

/** Returns the order of the events by group; within a group they stay in their order. */
function by_group(group: ArrayLike<number>, first: Uint32Array): Uint32Array {
  const next = first.slice()
  const order = new Uint32Array(group.length)
  for (let i = 0; i < group.length; i++) {
    order[next[group[i]]++] = i
  }
  return order
}

/** Returns ranges whose starts are stored as the distance from the end of the range before. */
function ranges_of(steps: Float64Array, dur: Float64Array): {start: Float64Array, end: Float64Array} {
  const start = new Float64Array(steps.length)
  const end = new Float64Array(steps.length)
  for (let i = 0; i < steps.length; i++) {
    start[i] = steps[i] + (i == 0 ? 0 : end[i - 1])
    end[i] = start[i] + dur[i]
  }
  return {start, end}
}

/** Sums and extremes of the events of a row; values that are not known are left out of all but the count. */
class Aggregated {
  covered = 0
  private events = 0
  private known = 0
  private sum = 0
  private least = Infinity
  private most = -Infinity

  add(value: number): void {
    this.events += 1
    if (!Number.isNaN(value)) {
      this.known += 1
      this.sum += value
      this.least = Math.min(this.least, value)
      this.most = Math.max(this.most, value)
    }
  }

  /** Returns an aggregate: the sum of none is 0, their mean and extremes are unknown. */
  value(how: Aggregate): number | null {
    switch (how) {
      case "count": return this.events
      case "time": case "sum": return this.sum
      case "mean": return this.known == 0 ? null : this.sum/this.known
      case "min": return this.known == 0 ? null : this.least
      default: return this.known == 0 ? null : this.most
    }
  }
}

/** Name of the analysis whose rows are Python functions, which its first column names. */
export const PYTHON_PANEL = "python_time"
/** Name of the analysis whose events are the pieces of the critical path. */
export const PATH_PANEL = "critical_path"

/** One piece of the path; times in ns; `row` is -1 where it is no slice, `track` where it is of no track. */
export type PathPiece = {start: number, end: number, row: number, track: number}

export function has_path(store: Store): boolean {
  return store.header.panels.some(({name}) => name == PATH_PANEL)
}

/** Returns the pieces of the path in order of time; none where no path is known. */
export function path_pieces(store: Store): PathPiece[] {
  return store.lazily("path", () => {
    const events = panel(store, PATH_PANEL)?.events
    const pieces = events == null ? [] : Array.from(events.start, (start, i): PathPiece =>
      ({start: store.ns(start), end: store.ns(events.end[i]), row: events.row[i], track: events.track[i]}))
    return pieces.sort((a, b) => a.start - b.start || a.end - b.end)
  })
}
