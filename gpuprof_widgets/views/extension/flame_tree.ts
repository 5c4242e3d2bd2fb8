import {flame, flame_instances, laid_out, nodes_of_rows} from "./engine"
import type {FlameNode, FlameSource, FlameTime, Store, Window} from "./engine"

/** A flame graph and where one stands in it: the zoomed node and what is searched for. */
export class FlameTree {
  focus = 0
  matched: Set<number> | null = null
  /** Share of the whole in and under the matched nodes, counted once. */
  matched_share = 0
  /** Of what has a width, or would have one by CPU time: the other time takes no room away. */
  levels = 1
  nodes: FlameNode[] = []
  private source: FlameSource = "ops"
  private rows_to_nodes: Int32Array | null = null
  private children: number[][] = []

  constructor(private readonly store: Store) {}

  /** Computes the tree anew for a range; the zoomed node is kept where it still has a width. */
  rebuild(range: Window, source: FlameSource, time: FlameTime): void {
    const path = this.path(this.focus)
    this.source = source
    this.rows_to_nodes = null
    this.nodes = flame(this.store, range, source)
    this.focus = 0
    this.lay_out(time)
    this.focus = this.follow(path)
  }

  /** Widths by that time; of a zoomed node without one, what is around it is zoomed. */
  lay_out(time: FlameTime): void {
    laid_out(this.nodes, time)
    this.children = this.nodes.map(() => [])
    this.levels = 1
    for (const node of this.nodes) {
      if (node.parent >= 0 && has_width(node)) {
        this.children[node.parent].push(node.id)
      }
      if (node.total > 0 || has_width(node)) {
        this.levels = Math.max(this.levels, node.depth + 1)
      }
    }
    for (const ids of this.children) {
      ids.sort((a, b) => this.nodes[a].x0 - this.nodes[b].x0)
    }
    while (this.focus > 0 && !has_width(this.nodes[this.focus])) {
      this.focus = this.nodes[this.focus].parent
    }
  }

  /** The node at the end of a path of another tree; -1 where this one has none. */
  find(path: FlameNode[]): number {
    const id = this.follow(path)
    return path.length > 0 && this.nodes[id].depth == path.length - 1 ? id : -1
  }

  /** The deepest node of this tree along a path of another one. */
  private follow(path: FlameNode[]): number {
    let id = 0
    for (const {label, name} of path.slice(1)) {
      const next = this.children[id].find((child) => this.nodes[child].label == label && this.nodes[child].name == name)
      if (next == null) {
        break
      }
      id = next
    }
    return id
  }

  node(id: number): FlameNode | undefined {
    return this.nodes[id]
  }

  /** Those with a width from left to right, which is from the longest to the shortest. */
  children_of(id: number): number[] {
    return this.children[id] ?? []
  }

  /** From the root to a node. */
  path(id: number): FlameNode[] {
    const path: FlameNode[] = []
    for (let node = this.node(id); node != null; node = this.node(node.parent)) {
      path.unshift(node)
    }
    return path
  }

  contains(ancestor: number, id: number): boolean {
    return this.path(id).some((node) => node.id == ancestor)
  }

  /** The slices of the whole trace that a node stands for. */
  instances(id: number): Int32Array {
    return flame_instances(this.store, this.source, this.nodes, id)
  }

  /** The node of an event; for a kernel or a launch that of the op that caused it, else of the launch. -1 where there is none. */
  node_of(row: number): number {
    const node_of = this.rows_to_nodes ??= nodes_of_rows(this.store, this.source, this.nodes)
    const cause = this.store.op[row] >= 0 ? this.store.op[row] : this.store.owner[row]
    return node_of[row] >= 0 || cause < 0 ? node_of[row] : node_of[cause]
  }

  /** Marks the nodes whose name matches; null marks none. */
  search(test: ((name: string) => boolean) | null): void {
    const matched = new Set<number>()
    const inside = new Uint8Array(this.nodes.length)
    let share = 0
    for (const {id, parent, name, x0, x1} of test == null ? [] : this.nodes.slice(1)) {
      const matches = test!(name)
      if (matches) {
        matched.add(id)
        share += inside[parent] == 1 ? 0 : x1 - x0
      }
      inside[id] = Number(matches || inside[parent] == 1)
    }
    this.matched = test == null ? null : matched
    this.matched_share = share
  }
}

export function has_width({x0, x1}: FlameNode): boolean {
  return x1 > x0
}
