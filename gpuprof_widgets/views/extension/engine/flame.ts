/** Call trees for flame graphs: equal call paths are one node, in ns, for a time range. */

import {gpu_rows, launched_device_times} from "./device_time"
import {INSIDE, kept_rows, OUTSIDE} from "./kept"
import {merged_labels, merged_name} from "./steps"
import {add_self_times, gather, nest, subtree_ends} from "./nest"
import type {Nesting} from "./nest"
import type {Store, Window} from "./store"
import {NONE} from "./store"

/** Ops by nesting; Python frames and ops together; cProfile's edges (an estimate, without times of day). */
export type FlameSource = "ops" | "merged" | "cprofile"

/** What a node is as wide as: the time in which it ran, or the GPU time that it caused. */
export type FlameTime = "cpu" | "device"

/** The node beside the threads that has the GPU work which nothing in the tree launched. */
export const UNLAUNCHED = "unlaunched"
const UNLAUNCHED_NAME = "GPU work without a launch in the trace"

/** Times in ns. */
export type FlameNode = {
  /** index of the node; a parent stands before its children */
  id: number
  parent: number
  depth: number
  /** index into `header.label`; -1 for the root, threads and cProfile's functions */
  label: number
  name: string
  category: string
  calls: number
  /** own time and that of all below: the times of the children fit into it */
  total: number
  self: number
  /** GPU time caused by the node's ops and all below, summed over streams and GPUs */
  device: number
  /** what they launched themselves */
  device_self: number
  /** left and right edge as shares of the root */
  x0: number
  x1: number
}

/** The sources that a record has, best first. */
export function flame_sources(store: Store): FlameSource[] {
  const has = (kind: string): boolean => store.header.tracks.some((track) => track.kind == kind)
  const sources: FlameSource[] = []
  if (has("python")) {
    sources.push("merged")
  }
  if (has("cpu")) {
    sources.push("ops")
  }
  if (store.header.calls != null) {
    sources.push("cprofile")
  }
  return sources
}

/** The call tree of a window, by CPU time; cProfile's is always that of the whole record. Node 0 is the root. */
export function flame(store: Store, window: Window, source: FlameSource): FlameNode[] {
  if (source == "cprofile") {
    return laid_out(call_nodes(store), "cpu")
  }
  const tree = new Tree(store, window)
  const threads = stacks(store, source)
  for (const thread of threads) {
    tree.add(thread, threads.length > 1)
  }
  tree.add_unlaunched(unlaunched_rows(store, source))
  return laid_out(tree.summed(), "cpu")
}

/** The slices of the whole record whose call path is that of a node; none for cProfile. */
export function flame_instances(store: Store, source: FlameSource, nodes: readonly FlameNode[], id: number): Int32Array {
  const rows: number[] = []
  nodes_of_rows(store, source, nodes).forEach((node, row) => {
    if (node == id) {
      rows.push(row)
    }
  })
  return Int32Array.from(rows)
}

/** Per row of the record the node with its call path, -1 for rows that are not in the tree. */
export function nodes_of_rows(store: Store, source: FlameSource, nodes: readonly FlameNode[]): Int32Array {
  const found = new Int32Array(store.rows).fill(NONE)
  const threads = source == "cprofile" ? [] : stacks(store, source)
  const ids = new Map(nodes.map((node) => [child_key(node.parent, node.label, node.name), node.id]))
  const labels = merged_labels(store)
  for (const stack of threads) {
    const root = threads.length > 1 ? ids.get(child_key(0, NONE, stack.label)) ?? NONE : 0
    stack.rows.forEach((row, i) => {
      const above = caller_of(stack, i, () => true)
      const caller = above < 0 ? root : found[stack.rows[above]]
      found[row] = ids.get(child_key(caller, labels[store.label[row]], "")) ?? NONE
    })
  }
  const beside = nodes.find(({category}) => category == UNLAUNCHED)
  for (const row of beside == null || source == "cprofile" ? [] : unlaunched_rows(store, source)) {
    found[row] = beside!.id
  }
  return found
}

/** The GPU rows whose launch, or op, is in no stack of the tree. */
function unlaunched_rows(store: Store, source: "ops" | "merged"): Int32Array {
  return store.lazily(`unlaunched of ${source}`, () => {
    const in_tree = new Uint8Array(store.rows)
    for (const {rows} of stacks(store, source)) {
      rows.forEach((row) => { in_tree[row] = 1 })
    }
    return gpu_rows(store).filter((row) => store.owner[row] < 0 || in_tree[store.owner[row]] == 0)
  })
}

/** What tells the children of a node apart: the label, or the name of what has none. */
function child_key(parent: number, label: number, name: string): string {
  return `${parent} ${label == NONE ? name : label}`
}

/**
 * One thread's slices in the order of their starts; `parent` (the latest slice that is still open,
 * to which self times go) and `caller` (whose child a slice is in the tree) are positions in `rows`.
 */
type Stack = Nesting & {
  label: string
  rows: Int32Array
  caller: Int32Array
  /** ends before a window cut them */
  ended: Float64Array
  /** a caller also has to outlast its child: a region outlives the frame of its `__enter__` */
  outlasting: boolean
}

function stacks(store: Store, source: "ops" | "merged"): Stack[] {
  return store.lazily(`stacks of ${source}`, () => {
    const listed = rows_by_lane(store, source == "ops" ? ["cpu"] : ["cpu", "python"])
    return [...listed.values()].map(({label, rows}) => stack(store, source, label, rows))
  })
}

type Lane = {label: string, rows: number[]}

function rows_by_lane(store: Store, kinds: readonly string[]): Map<number, Lane> {
  const is_instant = store.category_mask(["cpu_instant_event"])
  const lanes = new Map<number, Lane>()
  store.header.tracks.forEach((track, i) => {
    if (kinds.includes(track.kind)) {
      const lane = lanes.get(track.lane) ?? {label: track.label, rows: []}
      lanes.set(track.lane, lane)
      for (let row = store.first_row[i]; row < store.first_row[i + 1]; row++) {
        if (is_instant[store.label[row]] == 0) {
          lane.rows.push(row)
        }
      }
    }
  })
  return lanes
}

function stack(store: Store, source: "ops" | "merged", label: string, rows: number[]): Stack {
  if (source == "merged") {
    // A Python frame that begins and ends with an op called it.
    const is_op = (row: number): number => Number(store.header.tracks[store.track[row]].kind == "cpu")
    const {began, ended} = store
    rows.sort((a, b) => began[a] - began[b] || ended[b] - ended[a] || is_op(a) - is_op(b) || a - b)
  }
  const ts = gather(store.ts, rows)
  const end = gather(store.end, rows)
  const parent = nest(ts, end)
  const ended = gather(store.ended, rows)
  const outlasting = source == "merged"
  const caller = outlasting ? nest(gather(store.began, rows), ended) : known_callers(store, rows)
  return {label, rows: Int32Array.from(rows), ts, end, parent, subtree_end: subtree_ends(end, parent), caller, ended, outlasting}
}

/** Position of the innermost caller that is part of the tree, -1 for none. */
function caller_of({rows, ended, caller, outlasting}: Stack, i: number, is_wanted: (row: number) => boolean): number {
  let above = caller[i]
  while (above >= 0 && (!is_wanted(rows[above]) || (outlasting && ended[above] < ended[i]))) {
    above = caller[above]
  }
  return above
}

/** Positions of the rows' parents. */
function known_callers(store: Store, rows: number[]): Int32Array {
  const position = new Int32Array(store.rows).fill(NONE)
  rows.forEach((row, i) => position[row] = i)
  return Int32Array.from(rows, (row) => store.parent[row] < 0 ? NONE : position[store.parent[row]])
}

class Tree {
  private readonly nodes: FlameNode[] = [new_node(0, NONE, 0, NONE, "all threads", "thread")]
  private readonly children = new Map<number, number>()
  private readonly kept: Uint8Array
  private readonly device: Float64Array
  private readonly labels: Int32Array

  constructor(private readonly store: Store, private readonly window: Window) {
    this.labels = merged_labels(store)
    this.kept = kept_rows(store, window)
    this.device = launched_device_times(store, window)
  }

  /** Add a thread's slices that lie in the window or own GPU work in it. */
  add(stack: Stack, with_root: boolean): void {
    const {store, window, kept, nodes} = this
    const self = new Float64Array(stack.rows.length)
    add_self_times(self, stack, window.start, window.end, 0, stack.rows.length)
    const node_at = new Int32Array(stack.rows.length)
    const is_kept = (row: number): boolean => kept[row] != OUTSIDE
    let root = with_root ? NONE : 0
    stack.rows.forEach((row, i) => {
      if (kept[row] == OUTSIDE) {
        return
      }
      if (root == NONE) {
        root = this.thread(stack.label)
      }
      const above = caller_of(stack, i, is_kept)
      node_at[i] = this.child(above < 0 ? root : node_at[above], row)
      const node = nodes[node_at[i]]
      node.calls += kept[row] == INSIDE ? store.count[row] : 0
      node.self += self[i]
      node.device_self += this.device[row]
    })
  }

  /** Add these GPU rows as one node, if any of them lies in the window. */
  add_unlaunched(rows: Int32Array): void {
    const {store, window, nodes} = this
    const inside = rows.filter((row) => this.kept[row] == INSIDE)
    if (inside.length > 0) {
      const node = nodes[this.grow(-1 - nodes.length, 0, NONE, UNLAUNCHED_NAME, UNLAUNCHED)]
      for (const row of inside) {
        node.calls += store.count[row]
        node.device_self += store.time_inside(row, window)
      }
    }
  }

  /** The nodes with totals, in ns; without those that a window keeps for their links alone. */
  summed(): FlameNode[] {
    const used = this.nodes.map(({calls, self, device_self}, id) => id == 0 || calls > 0 || self > 0 || device_self > 0)
    for (const node of this.nodes) {
      node.total = node.self = this.store.ns(node.self)
      node.device = node.device_self = this.store.ns(node.device_self)
    }
    for (let id = this.nodes.length - 1; id > 0; id--) {
      const above = this.nodes[this.nodes[id].parent]
      used[above.id] ||= used[id]
      above.total += this.nodes[id].total
      above.device += this.nodes[id].device
    }
    return renumbered(this.nodes.filter((_, id) => used[id]))
  }

  /** The child of a node for a row's label, made when it is first met. */
  private child(parent: number, row: number): number {
    const label = this.labels[this.store.label[row]]
    const key = parent*this.labels.length + label
    return this.children.get(key) ?? this.grow(key, parent, label, merged_name(this.store.name(row)), this.store.category(row))
  }

  private thread(label: string): number {
    return this.grow(-1 - this.nodes.length, 0, NONE, label, "thread")
  }

  private grow(key: number, parent: number, label: number, name: string, category: string): number {
    const id = this.nodes.length
    this.children.set(key, id)
    this.nodes.push(new_node(id, parent, this.nodes[parent].depth + 1, label, name, category))
    return id
  }
}

/** Nodes after some were left out, a parent before its children. */
function renumbered(nodes: FlameNode[]): FlameNode[] {
  const number = new Map(nodes.map(({id}, i) => [id, i]))
  return nodes.map((node, id) => ({...node, id, parent: number.get(node.parent) ?? NONE}))
}

function new_node(id: number, parent: number, depth: number, label: number, name: string, category: string): FlameNode {
  return {id, parent, depth, label, name, category, calls: 0, total: 0, self: 0, device: 0, device_self: 0, x0: 0, x1: 0}
}

function call_nodes(store: Store): FlameNode[] {
  const nodes: FlameNode[] = []
  for (const {parent, name, calls, total_ns, self_ns} of store.header.calls ?? []) {
    const depth = parent < 0 ? 0 : nodes[parent].depth + 1
    const node = new_node(nodes.length, parent, depth, NONE, name, "cprofile")
    nodes.push({...node, calls, total: total_ns, self: self_ns})
  }
  return nodes
}

/** How wide a node is by that time, in ns. */
export function flame_width({total, device}: FlameNode, time: FlameTime): number {
  return time == "cpu" ? total : device
}

/** Place the children of each node from its left edge on, the longest first; returns the same nodes. */
export function laid_out(nodes: FlameNode[], time: FlameTime): FlameNode[] {
  const children: FlameNode[][] = nodes.map(() => [])
  for (const node of nodes.slice(1)) {
    children[node.parent].push(node)
  }
  const width = (node: FlameNode): number => flame_width(node, time)
  const whole = width(nodes[0]) || 1 // without any time there are no widths
  nodes[0].x1 = 1
  for (const node of nodes) {
    let x = node.x0
    for (const child of children[node.id].sort((a, b) => width(b) - width(a) || compare(a.name, b.name))) {
      child.x0 = x
      x += width(child)/whole
      child.x1 = x
    }
  }
  return nodes
}

function compare(a: string, b: string): number {
  return a < b ? -1 : Number(a > b)
}
