/** A call tree as an icicle shows it: which part is in view, and what is next to what. No DOM, no Bokeh. */

/** The levels that are in view at once. */
export const MAX_LEVELS = 22
/** Of these, levels of callers above a function and what it calls. */
export const CALLER_LEVELS = 8
/** The narrowest view, as a share of the root; and how far sums of shares may be off. */
const NARROWEST = 1e-7
export const ROUNDING = 1e-9

/** A node of a call tree; `x0`, `x1`: its left and right edge as shares of the root; the depth of a caller of the root is negative. */
export type IcicleNode = {id: number, parent: number, depth: number, name: string, category: string, x0: number, x1: number}

/** A call tree and the node to which it is zoomed; a node's id is its position. */
export class CallTree<Node extends IcicleNode> {
  nodes: Node[] = []
  /** numbers of levels to make room for, from the root down and above it */
  levels = 1
  levels_above = 0
  private children: number[][] = []
  private zoomed = 0
  /** The part of the zoomed node that is in view; null for all of it. */
  part: [number, number] | null = null

  /** The node to which the view is zoomed. */
  get focus(): number {
    return this.zoomed
  }

  set focus(id: number) {
    this.zoomed = id
    this.part = null
  }

  /** The left and right edge of the view, as shares of the root. */
  get view(): [number, number] {
    const {x0, x1} = this.nodes[this.zoomed]
    return this.part ?? [x0, x1]
  }

  /** Zooms by a factor (above 1: closer) around the point at share `at` of the view; out of a node into those around it. */
  zoom_by(factor: number, at: number): void {
    const [x0, x1] = this.view
    const span = Math.max((x1 - x0) / factor, NARROWEST)
    this.show(x0 + at * (x1 - x0 - span), span)
  }

  /** Moves the view by a share of its width, within the zoomed node. */
  pan_by(share: number): void {
    const [x0, x1] = this.view
    const top = this.nodes[this.zoomed]
    this.show(Math.max(top.x0, Math.min(x0 + share * (x1 - x0), top.x1 - (x1 - x0))), x1 - x0)
  }

  private show(first: number, span: number): void {
    const holds = ({x0, x1}: Node): boolean => x0 <= first + ROUNDING && x1 >= first + span - ROUNDING
    while (this.zoomed > 0 && !holds(this.nodes[this.zoomed])) {
      this.zoomed = this.nodes[this.zoomed].parent
    }
    const {x0, x1} = this.nodes[this.zoomed]
    const start = Math.max(x0, Math.min(first, x1 - span))
    this.part = span >= x1 - x0 - ROUNDING ? null : [start, start + span]
  }

  /** Whether a node is inside of the zoomed one, on a level in view. */
  reaches(id: number): boolean {
    const {depth} = this.nodes[id]
    return this.contains(this.focus, id) && this.shows(depth) && depth - this.top_depth < MAX_LEVELS
  }

  /** Shows the whole zoomed node again if another node lies outside of the part in view. */
  uncover(id: number): void {
    const [start, end] = this.view
    const {x0, x1} = this.nodes[id]
    if (x1 <= start || x0 >= end) {
      this.part = null
    }
  }

  /** Follows a change of the nodes or their widths. */
  protected arrange(): void {
    this.part = null
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

  /** Returns the children of a node, or the callers of the root, from left to right. */
  children_of(id: number): number[] {
    return this.children[id] ?? []
  }

  /** Returns the nodes with the parent and on the side of a node: itself and those next to it. */
  siblings_of(id: number): number[] {
    const {parent, depth} = this.nodes[id]
    return this.children_of(parent).filter((other) => this.nodes[other].depth == depth)
  }

  /** Returns the node above a node, of several callers the widest. */
  above(id: number): number | undefined {
    return this.nodes[id].depth > 0 ? this.nodes[id].parent : this.children_of(id).find((other) => this.nodes[other].depth < 0)
  }

  /** Returns the node below a node, of several callees the widest. */
  below(id: number): number | undefined {
    return this.nodes[id].depth < 0 ? this.nodes[id].parent : this.children_of(id).find((other) => this.nodes[other].depth > 0)
  }

  /** The depth of the topmost level in view: that of the zoomed node, or of callers above it. */
  get top_depth(): number {
    const {depth} = this.nodes[this.focus]
    const above = depth > 0 ? 0 : Math.min(this.levels_above + depth, depth == 0 ? CALLER_LEVELS : MAX_LEVELS - 1)
    return depth - above
  }

  /** Whether a level can be seen: with a caller zoomed, only its callers are as wide as their share of it. */
  shows(depth: number): boolean {
    return depth >= this.top_depth && (this.nodes[this.focus].depth >= 0 || depth <= this.nodes[this.focus].depth)
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
    return path.length > 0 && Math.abs(this.nodes[id].depth) == path.length - 1 ? id : -1
  }

  private descend(path: Node[], children_of: (id: number) => number[]): number {
    let id = 0
    for (const {category, name, depth} of path.slice(1)) {
      const is_next = (other: Node): boolean => other.category == category && other.name == name && other.depth == depth
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
