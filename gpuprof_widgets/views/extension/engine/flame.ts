/** Call trees for flame graphs: equal call paths are one node, in ns, for a time range. */

import {own_device_times} from "./device_time"
import {add_self_times, nest, subtree_ends} from "./nest"
import type {Nesting} from "./nest"
import type {Store, Window} from "./store"
import {NONE} from "./store"

/** Ops by nesting; Python frames and ops together; cProfile's edges (an estimate, without times of day). */
export type FlameSource = "ops" | "merged" | "cprofile"

/** Times in ns. */
export type FlameNode = {
  /** index of the node; node 0 is the root and a parent stands before its children */
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
  /** GPU time caused by the node's ops and all below */
  device: number
  /** left and right edge as shares of the root */
  x0: number
  x1: number
}

/** The sources that a record has, best first. */
export function flame_sources(store: Store): FlameSource[] {
  const has = (kind: string) => store.header.tracks.some((track) => track.kind == kind)
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

/** The call tree of a window; cProfile's is always that of the whole record. Node 0 is the root. */
export function flame(store: Store, window: Window, source: FlameSource): FlameNode[] {
  if (source == "cprofile") {
    return laid_out(call_nodes(store))
  }
  const tree = new Tree(store, window)
  const threads = stacks(store, source)
  for (const thread of threads) {
    tree.add(thread, threads.length > 1)
  }
  return laid_out(tree.summed())
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
  for (const {rows, parent, label} of threads) {
    const root = threads.length > 1 ? ids.get(child_key(0, NONE, label)) ?? NONE : 0
    rows.forEach((row, i) => {
      const above = parent[i] < 0 ? root : found[rows[parent[i]]]
      found[row] = ids.get(child_key(above, store.label[row], "")) ?? NONE
    })
  }
  return found
}

/** What tells the children of a node apart: the label, or the name of what has none. */
function child_key(parent: number, label: number, name: string): string {
  return `${parent} ${label == NONE ? name : label}`
}

/** One thread's slices in the order of nesting; parents are positions in `rows`. */
type Stack = Nesting & {rows: Int32Array, label: string}

function stacks(store: Store, source: "ops" | "merged"): Stack[] {
  return store.lazily(`stacks of ${source}`, () => {
    const kinds = source == "ops" ? ["cpu"] : ["cpu", "python"]
    const lanes = new Map<number, {label: string, rows: number[]}>()
    store.header.tracks.forEach((track, i) => {
      if (kinds.includes(track.kind)) {
        const lane = lanes.get(track.lane) ?? {label: track.label, rows: []}
        lanes.set(track.lane, lane)
        for (let row = store.first_row[i]; row < store.first_row[i + 1]; row++) {
          lane.rows.push(row)
        }
      }
    })
    return [...lanes.values()].map(({label, rows}) => stack(store, label, rows))
  })
}

function stack(store: Store, label: string, rows: number[]): Stack {
  // A Python frame that begins and ends with an op called it.
  const is_python = (row: number) => Number(store.header.tracks[store.track[row]].kind == "python")
  rows.sort((a, b) => store.ts[a] - store.ts[b] || store.end[b] - store.end[a] || is_python(b) - is_python(a) || a - b)
  const ts = Float64Array.from(rows, (row) => store.ts[row])
  const end = Float64Array.from(rows, (row) => store.end[row])
  const parent = new Int32Array(rows.length)
  nest(ts, end, parent, 0, rows.length)
  return {label, rows: Int32Array.from(rows), ts, end, parent, subtree_end: subtree_ends(end, parent)}
}

class Tree {
  private readonly nodes: FlameNode[] = [new_node(0, NONE, 0, NONE, "all", "")]
  private readonly children = new Map<string, number>()
  private readonly device: Float64Array

  constructor(private readonly store: Store, private readonly window: Window) {
    this.device = own_device_times(store, window)
  }

  /** Add a thread's slices that lie in the window or caused GPU time in it. */
  add(stack: Stack, with_root: boolean): void {
    const {store, window} = this
    const root = with_root ? this.child(0, NONE, stack.label, "") : 0
    const self = new Float64Array(stack.rows.length)
    add_self_times(self, stack, window.start, window.end, 0, stack.rows.length)
    const wanted = this.wanted(stack)
    const node_at = new Int32Array(stack.rows.length)
    stack.rows.forEach((row, i) => {
      const above = stack.parent[i] < 0 ? root : node_at[stack.parent[i]]
      if (wanted[i] == 0) {
        node_at[i] = above
        return
      }
      node_at[i] = this.child(above, store.label[row], store.name(row), store.category(row))
      const node = this.nodes[node_at[i]]
      node.calls += store.is_inside(row, window) ? store.count[row] : 0
      node.self += self[i]
      node.device += this.device[row]
    })
  }

  /** The nodes with totals, in ns. */
  summed(): FlameNode[] {
    for (const node of this.nodes) {
      node.self = this.store.ns(node.self)
      node.device = this.store.ns(node.device)
      node.total = node.self
    }
    for (let id = this.nodes.length - 1; id > 0; id--) {
      const above = this.nodes[this.nodes[id].parent]
      above.total += this.nodes[id].total
      above.device += this.nodes[id].device
    }
    return this.nodes
  }

  private wanted(stack: Stack): Uint8Array {
    const wanted = new Uint8Array(stack.rows.length)
    for (let i = stack.rows.length - 1; i >= 0; i--) {
      const row = stack.rows[i]
      if (this.device[row] > 0 || this.store.is_inside(row, this.window)) {
        wanted[i] = 1
      }
      if (this.device[row] > 0) {
        this.mark_callers(stack, i, wanted)
      }
    }
    return wanted
  }

  private mark_callers(stack: Stack, i: number, wanted: Uint8Array): void {
    for (let above = stack.parent[i]; above >= 0 && wanted[above] == 0; above = stack.parent[above]) {
      wanted[above] = 1
    }
  }

  private child(parent: number, label: number, name: string, category: string): number {
    const key = child_key(parent, label, name)
    let id = this.children.get(key)
    if (id == null) {
      id = this.nodes.length
      this.children.set(key, id)
      this.nodes.push(new_node(id, parent, this.nodes[parent].depth + 1, label, name, category))
    }
    return id
  }
}

function new_node(id: number, parent: number, depth: number, label: number, name: string, category: string): FlameNode {
  return {id, parent, depth, label, name, category, calls: 0, total: 0, self: 0, device: 0, x0: 0, x1: 0}
}

function call_nodes(store: Store): FlameNode[] {
  const nodes = [new_node(0, NONE, 0, NONE, "all", "")]
  for (const call of store.header.calls ?? []) {
    const parent = call.parent + 1
    const node = new_node(nodes.length, parent, nodes[parent].depth + 1, NONE, call.name, "python_function")
    nodes.push({...node, calls: call.calls, total: call.total_ns, self: call.self_ns})
    if (parent == 0) {
      nodes[0].total += call.total_ns
    }
  }
  return nodes
}

/** Place the children of each node from its left edge on, the longest first. */
function laid_out(nodes: FlameNode[]): FlameNode[] {
  const children: FlameNode[][] = nodes.map(() => [])
  for (const node of nodes.slice(1)) {
    children[node.parent].push(node)
  }
  const whole = nodes[0].total || 1
  nodes[0].x1 = 1
  for (const node of nodes) {
    let x = node.x0
    for (const child of children[node.id].sort((a, b) => b.total - a.total || compare(a.name, b.name))) {
      child.x0 = x
      x += child.total/whole
      child.x1 = x
    }
  }
  return nodes
}

function compare(a: string, b: string): number {
  return a < b ? -1 : Number(a > b)
}
