/** A call tree as an icicle shows it: which part is in view, and what is next to what. No DOM, no Bokeh. */

/** The levels that are in view at once. */
export const MAX_LEVELS = 22
/** How far sums of shares may be off. */
export const ROUNDING = 1e-9

/** A node of a call tree; `x0`, `x1`: its left and right edge as shares of the root. */
export type IcicleNode = {id: number, parent: number, depth: number, name: string, category: string, x0: number, x1: number}

/** A call tree and the node to which it is zoomed; a node's id is its position. */
export class CallTree<Node extends IcicleNode> {
  nodes: Node[] = []
  /** number of levels to make room for */
  levels = 1
  /** The node to which the view is zoomed. */
  focus = 0
  private children: number[][] = []
  /** Whether a node is inside of the zoomed one, on a level in view. */
  reaches(id: number): boolean {
    return this.contains(this.focus, id) && this.nodes[id].depth - this.nodes[this.focus].depth < MAX_LEVELS
  }

  /** Follows a change of the nodes or their widths. */
  protected arrange(): void {
    this.children = this.nodes.map(() => [])
    for (const node of this.nodes) {
      this.children[node.parent]?.push(node.id)
    }
    for (const ids of this.children) {
      ids.sort((a, b) => this.nodes[a].x0 - this.nodes[b].x0 || this.nodes[a].x1 - this.nodes[b].x1)
    }
  }

  node(id: number): Node | undefined {
    return this.nodes[id]
  }

  /** Returns the children of a node from left to right. */
  children_of(id: number): number[] {
    return this.children[id] ?? []
  }

  /** Returns the nodes with the parent of a node: itself and those next to it. */
  siblings_of(id: number): number[] {
    return this.children_of(this.nodes[id].parent)
  }

  /** Returns the nodes from the root to a node. */
  path(id: number): Node[] {
    const path: Node[] = []
    for (let node = this.node(id); node != null; node = this.node(node.parent)) {
      path.unshift(node)
    }
    return path
  }

  contains(ancestor: number, id: number): boolean {
    return this.path(id).some((node) => node.id == ancestor)
  }

  /** Returns the deepest node with a width along a path of an earlier tree. */
  follow(path: Node[]): number {
    return this.descend(path, (id) => this.children_of(id))
  }

  /** Returns the node at the end of a path of an earlier tree; -1 where this one has none. */
  find(path: Node[]): number {
    const id = this.descend(path, (id) => this.children[id] ?? [])
    return path.length > 0 && this.nodes[id].depth == path.length - 1 ? id : -1
  }

  private descend(path: Node[], children_of: (id: number) => number[]): number {
    let id = 0
    for (const {category, name} of path.slice(1)) {
      const is_next = (other: Node): boolean => other.category == category && other.name == name
      const next = children_of(id).find((child) => is_next(this.nodes[child]))
      if (next == null) {
        break
      }
      id = next
    }
    return id
  }
}

export function has_width({x0, x1}: IcicleNode): boolean {
  return x1 > x0
}
