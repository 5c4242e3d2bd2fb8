/** The causes of a slice: cell line, annotation, module, Python line, op, launch, GPU slice. */

import {last_at_or_before} from "./intervals"
import {line_owners} from "./lines"
import {is_launch_category} from "./rows"
import {NONE, type Store} from "./store"

export type Role = "line" | "annotation" | "module" | "python" | "forward line" | "forward module" | "forward" | "op" | "launch" | "gpu"
export type Link = {role: Role, text: string, row: number}

/**
 * Returns the causes of a slice, outermost first, and the slice itself at the end: the innermost cell line,
 * annotation, Python line and module around its op (for an op of the backward pass also those of its forward
 * op), the outermost and the innermost op, the launch.
 */
export function chain(store: Store, row: number): Link[] {
  const launch = store.owner[row]
  const op = store.is_op(row) ? row : store.op[row]
  const cause = op >= 0 ? op : launch >= 0 ? launch : row
  const ops = op < 0 ? [] : [op, ...ancestors(store, op)]
  const calls = ops.filter((around) => store.category(around) == "cpu_op")
  const forward = calls.map((call) => store.forward[call]).find((forward) => forward >= 0)
  const lines = line_owners(store, cause)
  const outer: [Role, number | undefined][] = [
    ["line", store.category(row) == "cell_line" ? line_owners(store, store.parent[row]).line : lines.line],
    ["annotation", ops.find((around) => store.category(around) == "user_annotation")],
  ]
  const members: [Role, number | undefined][] = [
    ...by_start(store, outer),
    ...frames(store, cause, module_region(store, cause)),
    ["forward line", lines.forward],
    ["forward module", forward == null ? undefined : module_region(store, forward)],
    ["forward", forward],
    ["op", calls[calls.length - 1]],
    ["op", calls[0]],
    ["launch", launch >= 0 && launch != op ? launch : undefined],
    [role_of(store, row), row],
  ]
  const rows = members.map(([, member]) => member)
  return members.flatMap(([role, member], i) =>
    member == null || member < 0 || rows.indexOf(member, i + 1) >= 0 ? [] : {role, text: store.name(member), row: member})
}

/** Returns the innermost module around a slice, as the recorder marked it. */
function module_region(store: Store, row: number): number | undefined {
  return [row, ...ancestors(store, row)].find((around) => MODULES.includes(store.category(around)))
}

export const MODULES = ["module", "module_backward"]

/** Torch writes a Python frame as `train.py(12): step`. */
const SOURCE_LINE = /\(\d+\): /

/** Returns the innermost module and Python line, the later one last; a line of the user's code goes before one of a library. */
function frames(store: Store, cause: number, region: number | undefined): [Role, number | undefined][] {
  const running = [...python_frames(store, cause)]
  const lines = running.filter((frame) => SOURCE_LINE.test(store.name(frame)))
  const module = region ?? running.find((frame) => is_module(store, frame))
  const line = lines.find((frame) => !store.header.library.includes(store.label[frame])) ?? lines[0]
  return by_start(store, [["python", line], ["module", module]])
}

/** Sorts what is open at the same time: what began first is around the others. */
function by_start(store: Store, links: [Role, number | undefined][]): [Role, number | undefined][] {
  const began = (row: number | undefined): number => row == null || row < 0 ? NONE : store.began[row]
  return links.sort(([, a], [, b]) => began(a) - began(b))
}

function role_of(store: Store, row: number): Role {
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
  if (category == "cell_line") {
    return "line"
  }
  if (MODULES.includes(category)) {
    return "module"
  }
  return category == "cpu_op" ? "op" : "annotation"
}

function is_module(store: Store, row: number): boolean {
  return store.name(row).startsWith("nn.Module: ")
}

/** Yields the Python frames of the same thread that were open when a slice began, innermost first. */
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
  const [first, last] = [store.first_row[track], store.first_row[track + 1]]
  for (let frame = last_at_or_before(store.ts, store.ts[row], first, last); frame >= 0; frame = store.parent[frame]) {
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

