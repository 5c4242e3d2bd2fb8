/** Call trees for flame graphs: equal call paths are one node, in ns, for a time range. */

import {INSIDE, kept_rows, OUTSIDE} from "./callers"
import type {Times, Window} from "./columns"
import {gpu_rows} from "./device_time"
import {merged_labels, merged_name} from "./names"
import {gather, nest, nest_rows, subtree_ends} from "./nest"
import {NONE, rows_equal_to, type Store} from "./store"

/** Ops by nesting; Python frames and ops together; cProfile's edges (an estimate, without times of day). */
export type FlameSource = "ops" | "merged" | "cprofile"

/** The time that the width of a node shows: that in which it ran, or the GPU time that it caused. */
export type FlameTime = "cpu" | "device"

/** Category of the node, next to the threads, of the GPU work that nothing in the tree launched. */
export const UNLAUNCHED = "unlaunched"
const UNLAUNCHED_NAME = "GPU work without a launch in the trace"

/** Times in ns. */
export type FlameNode = {
  /** index of the node; a parent stands before its children */
  id: number
  parent: number
  depth: number
  /** numbers of the call paths in the whole record whose calls it shows: one of a plain tree, none of the root */
  paths: number[]
  /** index into `header.label`; -1 for the root, threads and cProfile's functions */
  label: number
  name: string
  category: string
  calls: number
  /** time of the node and of all below: the times of the children fit into it */
  total: number
  self: number
  /** GPU time caused by the node's ops and all below, summed over streams and GPUs */
  device: number
  /** GPU time of the work that they launched themselves */
  device_self: number
  /** left and right edge as shares of the root */
  x0: number
  x1: number
}

/** Returns the sources that a record has, best first. */
export function flame_sources(store: Store): FlameSource[] {
  const has = (kind: string): boolean => store.header.tracks.some((track) => track.kind == kind)
  const recorded = {merged: has("python"), ops: has("cpu"), cprofile: store.header.calls != null}
  return (["merged", "ops", "cprofile"] as const).filter((source) => recorded[source])
}

/** Returns the call tree of a window, by CPU time; cProfile's is always that of the whole record. Node 0 is the root. */
export function flame(store: Store, window: Window, source: FlameSource): FlameNode[] {
  return laid_out(source == "cprofile" ? call_nodes(store) : new Tree(paths(store, source), window).summed(), "cpu")
}

/** Returns the slices of the whole record with one of some call paths; none for cProfile. */
export function path_instances(store: Store, source: FlameSource, paths: number[]): Int32Array {
  const wanted = new Set(paths)
  return rows_equal_to(Uint8Array.from(paths_of_rows(store, source), (path) => Number(wanted.has(path))), 1)
}

/** Returns for each row of the record its call path, -1 for rows that are not in the tree. */
function paths_of_rows(store: Store, source: FlameSource): Int32Array {
  return source == "cprofile" ? new Int32Array(store.rows).fill(NONE) : paths(store, source).of_rows()
}

/** Returns the call paths of some rows, for a kernel or a launch that of its op, else of the launch; -1 for none. */
export function row_paths(store: Store, source: FlameSource, rows: Int32Array): Int32Array {
  const of_rows = paths_of_rows(store, source)
  return rows.map((row) => {
    const cause = store.op[row] >= 0 ? store.op[row] : store.owner[row]
    return of_rows[row] >= 0 || cause < 0 ? of_rows[row] : of_rows[cause]
  })
}

function paths(store: Store, source: "ops" | "merged"): Paths {
  return store.lazily(`paths of ${source}`, () => new Paths(store, source))
}

/**
 * One thread's slices in the order of their starts; `parent` (the latest slice that is still open, to which self
 * times go) and `above` (whose child a slice is by nesting) are positions in `rows`.
 */
type Stack = {
  /** path of the thread, the root where there is one thread alone */
  root: number
  rows: Int32Array
  parent: Int32Array
  subtree_end: Times
  above: Int32Array
  /** Ends before a window cut them, where a caller also has to outlast its child: a region outlives the frame of its `__enter__`. */
  ended: Times | null
  /** position of the caller in the whole record, -1 for none; and the call path there */
  caller: Int32Array
  path: Int32Array
}

/** Returns the position of the innermost wanted caller, -1 for none. */
function caller_of({ended, above}: Stack, i: number, is_wanted: (i: number) => boolean): number {
  let caller = above[i]
  while (caller >= 0 && (!is_wanted(caller) || (ended != null && ended[caller] < ended[i]))) {
    caller = above[caller]
  }
  return caller
}

type PathNode = Pick<FlameNode, "parent" | "depth" | "label" | "name" | "category">

/** The call paths of a record, put together once: in a window only few slices have lost a caller. */
class Paths {
  readonly nodes: PathNode[] = [{parent: NONE, depth: 0, label: NONE, name: "all threads", category: "thread"}]
  readonly stacks: Stack[]
  /** GPU rows whose launch or op is in no stack, and their path */
  readonly unlaunched: Int32Array
  readonly unlaunched_path: number
  private readonly children = new Map<number, number>()
  private readonly labels: Int32Array

  constructor(readonly store: Store, source: "ops" | "merged") {
    this.labels = merged_labels(store)
    const lanes = lanes_of(store, source == "ops" ? ["cpu"] : ["cpu", "python"])
    this.stacks = lanes.map(({label, rows}) => this.stack(source, lanes.length > 1 ? this.grow(0, NONE, label, "thread") : 0, rows))
    const in_tree = new Uint8Array(store.rows)
    this.stacks.forEach(({rows}) => rows.forEach((row) => { in_tree[row] = 1 }))
    this.unlaunched = gpu_rows(store).filter((row) => store.owner[row] < 0 || in_tree[store.owner[row]] == 0)
    this.unlaunched_path = this.unlaunched.length == 0 ? NONE : this.grow(0, NONE, UNLAUNCHED_NAME, UNLAUNCHED)
  }

  private stack(source: "ops" | "merged", root: number, rows: Int32Array): Stack {
    const {store} = this
    const is_merged = source == "merged"
    const ended = is_merged ? gather(store.ended, rows) : null
    const {end, parent} = nest_rows(rows, store.ts, store.end)
    const by_nesting = ended == null ? parent_positions(store, rows) : nest(gather(store.began, rows), ended)
    const above = by_nesting.every((row, i) => row == parent[i]) ? parent : by_nesting
    const caller = ended == null ? above : new Int32Array(rows.length)
    const stack = {root, rows, parent, subtree_end: subtree_ends(end, parent), above, ended, caller, path: new Int32Array(rows.length)}
    for (let i = 0; i < rows.length; i++) {
      caller[i] = ended == null ? above[i] : caller_of(stack, i, () => true)
      stack.path[i] = this.child(caller[i] < 0 ? root : stack.path[caller[i]], rows[i])
    }
    return stack
  }

  of_rows(): Int32Array {
    const path = new Int32Array(this.store.rows).fill(NONE)
    for (const stack of this.stacks) {
      stack.rows.forEach((row, i) => { path[row] = stack.path[i] })
    }
    this.unlaunched.forEach((row) => { path[row] = this.unlaunched_path })
    return path
  }

  /** Returns the path of a row below another one, made when it is first met. */
  child(parent: number, row: number): number {
    const label = this.labels[this.store.label[row]]
    const key = parent*this.labels.length + label
    let path = this.children.get(key)
    if (path == null) {
      path = this.grow(parent, label, merged_name(this.store.name(row)), this.store.category(row))
      this.children.set(key, path)
    }
    return path
  }

  private grow(parent: number, label: number, name: string, category: string): number {
    return this.nodes.push({parent, depth: this.nodes[parent].depth + 1, label, name, category}) - 1
  }
}

type Thread = {label: string, rows: Int32Array}

/** Returns the slices of each thread in the order of their starts. */
function lanes_of(store: Store, kinds: readonly string[]): Thread[] {
  const {tracks} = store.header
  const is_instant = store.category_mask(["cpu_instant_event"])
  const lanes = new Map<number, {label: string, rows: Int32Array[]}>()
  tracks.forEach(({kind, lane, label}, track) => {
    if (kinds.includes(kind)) {
      const thread = lanes.get(lane) ?? {label, rows: []}
      lanes.set(lane, thread)
      thread.rows.push(store.rows_of_track(track).filter((row) => is_instant[store.label[row]] == 0))
    }
  })
  const {began, ended} = store
  // A Python frame that begins and ends with an op called it.
  const is_op = (row: number): number => Number(tracks[store.track[row]].kind == "cpu")
  const order = (a: number, b: number): number => began[a] - began[b] || ended[b] - ended[a] || is_op(a) - is_op(b) || a - b
  return [...lanes.values()].map(({label, rows}) => ({label, rows: rows.length == 1 && !kinds.includes("python") ? rows[0] : joined(rows).sort(order)}))
}

function joined(parts: Int32Array[]): Int32Array {
  const all = new Int32Array(parts.reduce((sum, {length}) => sum + length, 0))
  let at = 0
  for (const part of parts) {
    all.set(part, at)
    at += part.length
  }
  return all
}

/** Returns the positions of the rows' parents. */
function parent_positions(store: Store, rows: Int32Array): Int32Array {
  const position = new Int32Array(store.rows).fill(NONE)
  rows.forEach((row, i) => { position[row] = i })
  return rows.map((row) => store.parent[row] < 0 ? NONE : position[store.parent[row]])
}

/** The call tree of a window: sums by call path. */
class Tree {
  private readonly calls: number[] = []
  private readonly self: number[] = []
  private readonly device: number[] = []

  constructor(private readonly paths: Paths, window: Window) {
    const {store, stacks} = paths
    const {state} = kept_rows(store, window)
    const device = launched_device_times(store, window, state)
    this.make_room()
    stacks.forEach((stack) => this.add(stack, window, state, device))
    this.add_unlaunched(window, state)
  }

  /** Adds a thread's slices that lie in the window or own GPU work in it. */
  private add(stack: Stack, {start, end}: Window, state: Uint8Array, device: Float64Array): void {
    const {paths: {store}, calls, self} = this
    const {rows, parent, subtree_end} = stack
    const path = this.paths_in_window(stack, state)
    for (let i = 0; i < rows.length; i++) {
      const row = rows[i]
      if (state[row] != OUTSIDE) {
        calls[path[i]] += state[row] == INSIDE ? store.count[row] : 0
        this.device[path[i]] += device[row]
      }
      const from = Math.max(store.ts[row], start)
      if (from >= end || subtree_end[i] <= start) {
        continue
      }
      const inside = Math.min(store.end[row], end) - from
      if (inside > 0 && state[row] != OUTSIDE) {
        self[path[i]] += inside
      }
      // From its start until its subtree ends, a child takes its parent's time.
      const above = parent[i]
      if (above >= 0 && state[rows[above]] != OUTSIDE) {
        self[path[above]] -= Math.max(Math.min(subtree_end[i], store.end[rows[above]], end) - from, 0)
      }
    }
  }

  /** Returns the call paths of kept slices: those of the whole record, except below slices that have lost their caller. */
  private paths_in_window(stack: Stack, state: Uint8Array): Int32Array {
    const {rows, caller, path, root} = stack
    const is_kept = (i: number): boolean => state[rows[i]] != OUTSIDE
    let changed: Int32Array | null = null
    for (let i = 0; i < rows.length; i++) {
      if (!is_kept(i)) {
        continue
      }
      const whole = caller[i]
      const has_lost = whole >= 0 && (!is_kept(whole) || changed != null && changed[whole] != path[whole])
      if (has_lost) {
        changed ??= path.slice()
        const now = caller_of(stack, i, is_kept)
        changed[i] = this.paths.child(now < 0 ? root : changed[now], rows[i])
      }
    }
    this.make_room()
    return changed ?? path
  }

  /** Has a sum of each path. */
  private make_room(): void {
    for (const sums of [this.calls, this.self, this.device]) {
      while (sums.length < this.paths.nodes.length) {
        sums.push(0)
      }
    }
  }

  /** Adds GPU rows as one node, if any of them lies in the window. */
  private add_unlaunched(window: Window, state: Uint8Array): void {
    const {store, unlaunched, unlaunched_path} = this.paths
    for (const row of unlaunched) {
      if (state[row] == INSIDE) {
        this.calls[unlaunched_path] += store.count[row]
        this.device[unlaunched_path] += store.time_inside(row, window)
      }
    }
  }

  /** Returns the nodes with totals in ns, without those that a window keeps for their links alone. */
  summed(): FlameNode[] {
    const {paths: {nodes, store}, calls, self, device} = this
    const used = nodes.map((_, id) => id == 0 || calls[id] > 0 || self[id] > 0 || device[id] > 0)
    const all = nodes.map((node, id): FlameNode => {
      const [own, own_device] = [store.ns(self[id]), store.ns(device[id])]
      const times = {total: own, self: own, device: own_device, device_self: own_device}
      return {id, paths: id == 0 ? [] : [id], ...node, calls: calls[id], ...times, x0: 0, x1: 0}
    })
    for (let id = all.length - 1; id > 0; id--) {
      const above = all[all[id].parent]
      used[above.id] ||= used[id]
      above.total += all[id].total
      above.device += all[id].device
    }
    return renumbered(all.filter((_, id) => used[id]))
  }
}

/** Returns for each row the GPU time (ticks) inside the window that it launched: a runtime call, else an op. */
function launched_device_times(store: Store, window: Window, state: Uint8Array): Float64Array {
  const device = new Float64Array(store.rows)
  for (const row of gpu_rows(store)) {
    if (state[row] == INSIDE && store.owner[row] >= 0) {
      device[store.owner[row]] += store.time_inside(row, window)
    }
  }
  return device
}

/** Returns nodes with new ids after some were left out, a parent before its children. */
function renumbered(nodes: FlameNode[]): FlameNode[] {
  const number = new Map(nodes.map(({id}, i) => [id, i]))
  return nodes.map((node, id) => ({...node, id, parent: number.get(node.parent) ?? NONE}))
}

function call_nodes(store: Store): FlameNode[] {
  const nodes: FlameNode[] = []
  for (const {parent, name, calls, total_ns, self_ns} of store.header.calls ?? []) {
    const depth = parent < 0 ? 0 : nodes[parent].depth + 1
    const id = nodes.length
    nodes.push({id, paths: id == 0 ? [] : [id], parent, depth, label: NONE, name, category: "cprofile", calls,
      total: total_ns, self: self_ns, device: 0, device_self: 0, x0: 0, x1: 0})
  }
  return nodes
}

/** Returns the width of a node by a time, in ns. */
export function flame_width({total, device}: FlameNode, time: FlameTime): number {
  return time == "cpu" ? total : device
}

/** Places the children of each node from its left edge on, the longest first; returns the same nodes. */
export function laid_out(nodes: FlameNode[], time: FlameTime): FlameNode[] {
  const width = (node: FlameNode): number => flame_width(node, time)
  place_children(nodes, width, (a, b) => width(b) - width(a) || compare(a.name, b.name))
  return nodes
}

type PlacedNode = {id: number, parent: number, x0: number, x1: number}

/** Places the children of each node in an order from its left edge on; the width of the root is 1. */
export function place_children<Node extends PlacedNode>(
  nodes: Node[], width: (node: Node) => number, order: (a: Node, b: Node) => number,
): void {
  const children: Node[][] = nodes.map(() => [])
  for (const node of nodes.slice(1)) {
    children[node.parent].push(node)
  }
  const whole = nodes.length == 0 ? 1 : width(nodes[0]) || 1 // without any time there are no widths
  for (const node of nodes) {
    if (node.id == 0) {
      node.x1 = 1
    }
    let left = node.x0
    for (const child of children[node.id].sort(order)) {
      child.x0 = left
      left += width(child)/whole
      child.x1 = left
    }
  }
}

function compare(a: string, b: string): number {
  return a < b ? -1 : Number(a > b)
}
