/** Where a slice comes from: annotation, module, Python line, op, launch, GPU slice. */

import type {Store} from "./store"
import {is_launch_category} from "./categories"

export type Role = "annotation" | "module" | "python" | "forward" | "op" | "launch" | "gpu"
export type Link = {role: Role, text: string, row: number}

/**
 * The chain that led to a slice, outermost first, ending with the slice itself: the innermost
 * annotation, module and Python line around its op, the outermost and the innermost op, the launch.
 */
export function chain(store: Store, row: number): Link[] {
  const launch = store.owner[row]
  const op = store.is_op(row) ? row : store.op[row]
  const cause = op >= 0 ? op : launch >= 0 ? launch : row
  const ops = op < 0 ? [] : [op, ...ancestors(store, op)]
  const calls = ops.filter((around) => store.category(around) == "cpu_op")
  const found: [Role, number | undefined][] = [
    ["annotation", ops.find((around) => store.category(around) == "user_annotation")],
    ...frames(store, cause),
    ["forward", calls.map((call) => store.forward[call]).find((forward) => forward >= 0)],
    ["op", calls[calls.length - 1]],
    ["op", calls[0]],
    ["launch", launch >= 0 && launch != op ? launch : undefined],
    [own_role(store, row), row],
  ]
  const rows = found.map(([, known]) => known)
  return found.flatMap(([role, known], i) =>
    known == null || rows.indexOf(known, i + 1) >= 0 ? [] : {role, text: store.name(known), row: known})
}

/** As torch writes a Python frame: `train.py(12): step` */
const SOURCE_LINE = /\(\d+\): /
const LIBRARY = /(^|[/\\])(torch|site-packages)[/\\]/

/** The innermost module and Python line, the outer one first; of lines rather one outside of torch. */
function frames(store: Store, cause: number): [Role, number | undefined][] {
  const running = [...python_frames(store, cause)]
  const lines = running.filter((frame) => SOURCE_LINE.test(store.name(frame)))
  const module = running.find((frame) => is_module(store, frame))
  const line = lines.find((frame) => !LIBRARY.test(store.name(frame))) ?? lines[0]
  const links: [Role, number | undefined][] = [["python", line], ["module", module]]
  return links.sort(([, a], [, b]) => running.indexOf(b ?? -1) - running.indexOf(a ?? -1))
}

function own_role(store: Store, row: number): Role {
  if (store.on_gpu[row] == 1) {
    return "gpu"
  }
  const category = store.category(row)
  if (category == "python_function") {
    return is_module(store, row) ? "module" : "python"
  }
  if (is_launch_category(category)) {
    return "launch"
  }
  return category == "cpu_op" ? "op" : "annotation"
}

function is_module(store: Store, row: number): boolean {
  return store.name(row).startsWith("nn.Module: ")
}

/** The Python frames of the same thread that were open when a slice began, innermost first. */
function* python_frames(store: Store, row: number): Generator<number> {
  const {lane, kind} = store.header.tracks[store.track[row]]
  if (kind == "python") {
    yield row
    yield* ancestors(store, row)
    return
  }
  const track = store.header.tracks.findIndex((other) => other.kind == "python" && other.lane == lane)
  if (track < 0 || kind != "cpu") {
    return
  }
  for (let frame = last_starting_by(store, track, store.ts[row]); frame >= 0; frame = store.parent[frame]) {
    if (store.end[frame] > store.ts[row]) {
      yield frame
    }
  }
}

function* ancestors(store: Store, row: number): Generator<number> {
  for (let above = store.parent[row]; above >= 0; above = store.parent[above]) {
    yield above
  }
}

/** Last row of a track that starts at a time or before, -1 if none does. */
function last_starting_by(store: Store, track: number, tick: number): number {
  let low = store.first_row[track]
  let high = store.first_row[track + 1]
  const first = low
  while (low < high) {
    const middle = (low + high) >>> 1
    if (store.ts[middle] <= tick) {
      low = middle + 1
    } else {
      high = middle
    }
  }
  return low > first ? low - 1 : -1
}
