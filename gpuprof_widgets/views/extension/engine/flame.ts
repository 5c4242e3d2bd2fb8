/** Call trees for flame graphs: equal call paths are one node, in ns, for a time range. */

import {INSIDE, kept_rows, OUTSIDE} from "./callers"
import {gpu_rows, launched_device_times} from "./device_time"
import {merged_labels, merged_name} from "./names"
import {add_self_times, gather, nest, nest_rows, type Nesting} from "./nest"
import {NONE, rows_equal_to, type Store, type Window} from "./store"

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

/** Returns the slices of the whole record whose call path is that of a node; none for cProfile. */
export function flame_instances(store: Store, source: FlameSource, nodes: readonly FlameNode[], id: number): Int32Array {
  return rows_equal_to(nodes_of_rows(store, source, nodes), id)
}

/** Returns for each row of the record the node with its call path, -1 for rows that are not in the tree. */
export function nodes_of_rows(store: Store, source: FlameSource, nodes: readonly FlameNode[]): Int32Array {
  const node_of = new Int32Array(store.rows).fill(NONE)
  const threads = source == "cprofile" ? [] : stacks(store, source)
  const ids = new Map(nodes.map((node) => [child_key(node.parent, node.label, node.name), node.id]))
  const labels = merged_labels(store)
  for (const stack of threads) {
    const root = threads.length > 1 ? ids.get(child_key(0, NONE, stack.label)) ?? NONE : 0
    stack.rows.forEach((row, i) => {
      const above = caller_of(stack, i, () => true)
      const caller = above < 0 ? root : node_of[stack.rows[above]]
      node_of[row] = ids.get(child_key(caller, labels[store.label[row]], "")) ?? NONE
    })
  }
  const unlaunched = nodes.find(({category}) => category == UNLAUNCHED)
  for (const row of unlaunched == null || source == "cprofile" ? [] : unlaunched_rows(store, source)) {
    node_of[row] = unlaunched!.id
  }
  return node_of
}

/** Returns the GPU rows whose launch or op is in no stack of the tree. */
function unlaunched_rows(store: Store, source: "ops" | "merged"): Int32Array {
  return store.lazily(`unlaunched of ${source}`, () => {
    const in_tree = new Uint8Array(store.rows)
    for (const {rows} of stacks(store, source)) {
      rows.forEach((row) => { in_tree[row] = 1 })
    }
    return gpu_rows(store).filter((row) => store.owner[row] < 0 || in_tree[store.owner[row]] == 0)
  })
}

/** Returns a key that tells the children of a node apart: by label or, without one, by name. */
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
      lane.rows = lane.rows.concat(Array.from(store.rows_of_track(i)).filter((row) => is_instant[store.label[row]] == 0))
    }
  })
  return lanes
}

function stack(store: Store, source: "ops" | "merged", label: string, listed: number[]): Stack {
  const rows = Int32Array.from(listed)
  if (source == "merged") {
    // A Python frame that begins and ends with an op called it.
    const is_op = (row: number): number => Number(store.header.tracks[store.track[row]].kind == "cpu")
    const {began, ended} = store
    rows.sort((a, b) => began[a] - began[b] || ended[b] - ended[a] || is_op(a) - is_op(b) || a - b)
  }
  const ended = gather(store.ended, rows)
  const outlasting = source == "merged"
  const caller = outlasting ? nest(gather(store.began, rows), ended) : parent_positions(store, rows)
  return {label, ...nest_rows(rows, store.ts, store.end), caller, ended, outlasting}
}

/** Returns the position of the innermost wanted caller, -1 for none. */
function caller_of({rows, ended, caller, outlasting}: Stack, i: number, is_wanted: (row: number) => boolean): number {
  let above = caller[i]
  while (above >= 0 && (!is_wanted(rows[above]) || (outlasting && ended[above] < ended[i]))) {
    above = caller[above]
  }
  return above
}

/** Returns the positions of the rows' parents. */
function parent_positions(store: Store, rows: Int32Array): Int32Array {
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

  /** Adds a thread's slices that lie in the window or own GPU work in it. */
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

  /** Adds GPU rows as one node, if any of them lies in the window. */
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

  /** Returns the nodes with totals in ns, without those that a window keeps for their links alone. */
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

  /** Returns the child of a node for a row's label, made when it is first met. */
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

/** Returns nodes with new ids after some were left out, a parent before its children. */
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
    let x = node.x0
    for (const child of children[node.id].sort(order)) {
      child.x0 = x
      x += width(child)/whole
      child.x1 = x
    }
  }
}

function compare(a: string, b: string): number {
  return a < b ? -1 : Number(a > b)
}
