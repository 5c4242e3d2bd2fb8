/** Search by name: the slices whose names match, how many they are and how long they took in a time range. */

import type {Window} from "./columns"
import {format_count, format_ns} from "./format"
import {merged_name} from "./names"
import {PYTHON_PANEL} from "./panels"
import type {Store} from "./store"

export type Matches = {
  /** indices into `header.label` */
  labels: Set<number>
  /** all slices of these labels, ascending */
  rows: Int32Array
}

/** What a search found in a window of one trace or of several; times in ns. */
export type MatchTotals = {
  names: Set<string>
  events: number
  /** slices that stand for the events: fewer where short ones were merged */
  bars: number
  /** time in which any match ran, summed over threads or streams; null where none is of that side */
  cpu: number | null
  gpu: number | null
}

/** Returns the slices with a matching name, of every category; steps and Python functions also go by their names in tables. */
export function search(store: Store, test: (name: string) => boolean): Matches {
  const {header, label} = store
  const is_match = Uint8Array.from(header.names, (name) => {
    const listed = listed_name(name)
    return Number(test(name) || listed != name && test(listed))
  })
  const mask = Uint8Array.from(header.label, ([name]) => is_match[name])
  let count = 0
  for (let row = 0; row < store.rows; row++) {
    count += mask[label[row]]
  }
  const rows = new Int32Array(count)
  for (let row = 0, at = 0; at < count; row++) {
    if (mask[label[row]] == 1) {
      rows[at++] = row
    }
  }
  return {labels: new Set(header.label.flatMap((_, i) => mask[i] == 1 ? i : [])), rows}
}

/** torch's name of a Python frame: `/home/me/train.py(3): step`. */
const FRAME = /^(.*)\((\d+)\): (.*)$/s

/** Returns the name of a slice in tables, where Python functions are named as by cProfile: `train.py:3(step)`. */
export function listed_name(name: string): string {
  const [, file, line, called] = FRAME.exec(name) ?? []
  return file == null ? merged_name(name) : `${file.replace(/^.*[/\\]/s, "")}:${line}(${called})`
}

/**
 * Returns the names of the functions that match and that cProfile alone knows: recorded Python frames have slices. The
 * call tree leaves out those of little time, which the table of functions has.
 */
export function matching_calls({header: {calls, panels, tracks}}: Store, test: (name: string) => boolean): Set<string> {
  if (calls == null || tracks.some(({kind}) => kind == "python")) {
    return new Set()
  }
  const [listed = []] = panels.find(({name}) => name == PYTHON_PANEL)?.values ?? []
  return new Set([...calls.slice(1).map(({name}) => name), ...listed.map(String)].filter(test))
}

/** Adds up the matches inside a window. A moment at which several of them are open on one thread or stream counts once. */
export function match_totals(store: Store, rows: Int32Array, window: Window): MatchTotals {
  const totals: MatchTotals = {names: new Set(), events: 0, bars: 0, cpu: null, gpu: null}
  const seen = new Uint8Array(store.header.label.length)
  for (const row of rows) {
    if (store.is_inside(row, window)) {
      totals.events += store.count[row]
      totals.bars += 1
      seen[store.label[row]] = 1
    }
  }
  store.header.label.forEach(([name], label) => seen[label] == 1 && totals.names.add(store.header.names[name]))
  for (const {on_gpu, tracks} of threads_of(store, rows)) {
    const side = on_gpu ? "gpu" : "cpu"
    totals[side] = (totals[side] ?? 0) + store.ns(open_time(store, tracks, window))
  }
  return totals
}

/** Adds up what was found in several traces. */
export function sum_of_totals(each: MatchTotals[]): MatchTotals {
  const sum = (a: number | null, b: number | null): number | null => a == null ? b : a + (b ?? 0)
  return each.reduce((all, some) => ({
    names: new Set([...all.names, ...some.names]), events: all.events + some.events, bars: all.bars + some.bars,
    cpu: sum(all.cpu, some.cpu), gpu: sum(all.gpu, some.gpu),
  }))
}

/** Returns the totals of a range in words; `whole`: those of the whole trace; `functions`: how many have no slices. */
export function match_text(range: MatchTotals | null, whole: MatchTotals, functions: number): string {
  const beside = functions == 0 ? [] : [`${format_count(functions, "function")}, not on the timeline`]
  if (whole.events == 0) {
    return beside[0] ?? "No name matches"
  }
  const {events, bars, cpu, gpu} = range ?? whole
  const all = format_count(whole.events, "event")
  const count = range == null ? `${all} of ${format_count(whole.names.size, "name")}` : `${events.toLocaleString("en")} of ${all} in the range`
  const drawn = bars == events ? "" : `, drawn as ${format_count(bars, "bar")}`
  const times: [string, number | null][] = [["CPU", cpu], ["GPU", gpu]]
  return [count + drawn, ...times.flatMap(([side, ns]) => ns == null ? [] : `${side} ${format_ns(ns)}`), ...beside].join(" · ")
}

type Thread = {on_gpu: boolean, tracks: Int32Array[]}

/** Returns the rows by thread or stream: of each of its tracks those that are there, sorted by start. */
function threads_of(store: Store, rows: Int32Array): Thread[] {
  const threads = new Map<number, Thread>()
  store.header.tracks.forEach(({lane, device}, track) => {
    const of_track = store.those_on_track(track, rows)
    if (of_track.length > 0) {
      const thread = threads.get(lane) ?? {on_gpu: device >= 0, tracks: []}
      threads.set(lane, thread)
      thread.tracks.push(of_track)
    }
  })
  return [...threads.values()]
}

/** Returns the ticks of a window at which any of the rows is open; each list of rows is sorted by start. */
function open_time(store: Store, lists: Int32Array[], window: Window): number {
  const at = new Uint32Array(lists.length)
  let [time, until] = [0, window.start]
  for (;;) {
    let next = -1
    let start = window.end
    for (let i = 0; i < lists.length; i++) {
      const ts = at[i] < lists[i].length ? store.ts[lists[i][at[i]]] : Infinity
      if (ts < start) {
        [next, start] = [i, ts]
      }
    }
    if (next < 0) {
      return time
    }
    const end = Math.min(store.end[lists[next][at[next]++]], window.end)
    time += Math.max(0, end - Math.max(start, until))
    until = Math.max(until, end)
  }
}
