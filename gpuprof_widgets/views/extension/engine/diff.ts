/** Two call trees as one (analyses/compare/paired_tree.py): every path of either run, with its times in both. */

import {place_children, UNLAUNCHED, type FlameNode} from "./flame"

/** A number for run a and one for run b. */
export type Both = [a: number, b: number]

/** Times in ns, multiplied by the scale of each run. */
export type DiffNode = {
  id: number
  parent: number
  depth: number
  /** b's name, else a's */
  name: string
  category: string
  /** the node of each tree, -1 where a run has no such path */
  nodes: Both
  calls: Both
  total: Both
  self: Both
  device: Both
  /** the longer self time of the two and the widths below it: room for the paths of either run */
  width: number
  /** left and right edge as shares of the root; see `lay_out` */
  x0: number
  x1: number
}

const THREAD = "thread"

/** Returns the part of a name that two runs have in common: a line or frame may have moved. */
export function path_name(name: string, category: string): string {
  if (category == "cell_line") {
    return name.replace(/^\d+: /, "")
  }
  return category == "python_function" ? name.replace(/\(\d+\)(?=: )/, "") : name
}

/** Returns the union of two trees, a's nodes before those that only b has; each run's numbers are multiplied by its `scale`. */
export function paired_tree(a: readonly FlameNode[], b: readonly FlameNode[], scale: Both = [1, 1]): DiffNode[] {
  const differ = has_threads(a) != has_threads(b)
  const union = new Union()
  ;[a, b].forEach((tree, side) => union.add(side, tree, differ && !has_threads(tree)))
  return union.widened(scale)
}

function has_threads(tree: readonly FlameNode[]): boolean {
  return tree.some(({id, category}) => id > 0 && category == THREAD)
}

class Union {
  private readonly nodes: DiffNode[] = []
  private readonly places = new Map<string, number>()

  /** `single`: the tree has no level of threads, as the other one has. */
  add(side: number, tree: readonly FlameNode[], single: boolean): void {
    const ranks = thread_ranks(tree)
    const places: number[] = []
    const unlaunched = tree.find(({category}) => category == UNLAUNCHED)
    let thread = -1
    for (const node of tree) {
      const rank = ranks.get(node.id)
      const above = node.id == 0 ? -1 : single && node.parent == 0 && node != unlaunched ? thread : places[node.parent]
      const common = rank ?? `${path_name(node.name, node.category)}\n0`
      const place = this.place(above, node.name, node.category, common)
      this.count(this.nodes[place], side, node)
      places.push(place)
      if (node.id == 0 && single && tree.length > (unlaunched == null ? 1 : 2)) {
        thread = this.place(place, THREAD, THREAD, `${THREAD}\n0`)
        this.count(this.nodes[thread], side, {...node, self: 0, device: node.device - (unlaunched?.device ?? 0), id: -1})
      }
    }
  }

  private place(parent: number, name: string, category: string, common: string): number {
    const key = `${parent}\n${category}\n${common}`
    let place = this.places.get(key)
    if (place == null) {
      place = this.nodes.length
      this.places.set(key, place)
      const depth = parent < 0 ? 0 : this.nodes[parent].depth + 1
      this.nodes.push({
        id: place, parent, depth, name, category, nodes: [-1, -1], calls: [0, 0], total: [0, 0], self: [0, 0],
        device: [0, 0], width: 0, x0: 0, x1: 0,
      })
    }
    this.nodes[place].name = name
    return place
  }

  /** Adds up: several nodes of a tree may become one, as two lines of equal text do. */
  private count(into: DiffNode, side: number, node: FlameNode): void {
    into.nodes[side] = into.nodes[side] < 0 ? node.id : into.nodes[side]
    into.calls[side] += node.calls
    into.total[side] += node.total
    into.self[side] += node.self
    into.device[side] += node.device
  }

  widened(scale: Both): DiffNode[] {
    const {nodes} = this
    for (const node of nodes) {
      for (const key of ["calls", "total", "self", "device"] as const) {
        node[key] = [node[key][0]*scale[0], node[key][1]*scale[1]]
      }
      node.width = Math.max(...node.self)
    }
    for (let id = nodes.length - 1; id > 0; id--) {
      nodes[nodes[id].parent].width += nodes[id].width
    }
    return nodes
  }
}

/** Returns for each thread its label without numbers and its rank, by time, among those of that label. */
function thread_ranks(tree: readonly FlameNode[]): Map<number, string> {
  const threads = tree.filter(({id, category}) => id > 0 && category == THREAD)
  const seen = new Map<string, number>()
  return new Map([...threads].sort((a, b) => b.total - a.total).map(({id, name}) => {
    const label = name.replace(/\d+/g, "").split("(")[0].trim()
    const place = seen.get(label) ?? 0
    seen.set(label, place + 1)
    return [id, `${label}\n${place}`]
  }))
}

/** Places the children of each node from its left edge on, the widest first. */
export function lay_out(nodes: DiffNode[]): void {
  place_children(nodes, ({width}) => width, (a, b) => b.width - a.width || a.id - b.id)
}

/** Returns how much a path changed, as a share of the longer of its two times: -1 it is gone, 0 the same, 1 it is new. */
export function change_of({total: [a, b]}: DiffNode): number {
  return a == b ? 0 : (b - a)/Math.max(a, b)
}
