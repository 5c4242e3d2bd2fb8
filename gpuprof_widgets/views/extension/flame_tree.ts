import {CallTree, has_width} from "./call_tree"
import {laid_out, merged_labels, PLAIN, type FlameNode, type FlameShape, type FlameTime, type Store} from "./engine"
import type {Selection} from "./report_state"

/** The call tree of a range, and its nodes that a search found. */
export class FlameTree extends CallTree<FlameNode> {
  shape = PLAIN
  matched: Set<number> | null = null
  /** the nodes that launched GPU work that was found */
  launching = new Set<number>()
  /** Share of the whole in and under the matched nodes, counted once. */
  matched_share = 0

  constructor(private readonly store: Store) {
    super()
  }

  /**
   * Shows the nodes of another range or in another shape, and returns which one is the chosen one, -1 for none. In the same shape
   * the zoomed node is kept where it still has a width.
   */
  replace(nodes: FlameNode[], time: FlameTime, {shape, chosen}: {shape: FlameShape, chosen: number}): number {
    const [zoomed, path] = [this.focus, chosen].map((id) => this.path(id))
    const has_same_shape = shape === this.shape
    this.shape = shape
    this.nodes = nodes
    this.focus = 0
    this.lay_out(time)
    this.focus = has_same_shape ? this.follow(zoomed) : 0
    const [same] = has_same_shape || path.length == 0 ? [] : this.with_paths(new Set(path[path.length - 1].paths))
    return has_same_shape ? this.find(path) : same ?? -1
  }

  /** Returns the nodes with any of some call paths. */
  with_paths(wanted: Set<number>): Set<number> {
    return new Set(this.nodes.flatMap(({id, paths}) => paths.some((path) => wanted.has(path)) ? id : []))
  }

  /** Lays the nodes out by a time. Where the zoomed node has none, the nearest node around it with a width is zoomed. */
  lay_out(time: FlameTime): void {
    laid_out(this.nodes, time)
    this.arrange()
    // By GPU time there is as much room as by CPU time.
    this.levels = this.nodes.reduce((most, node) => node.total > 0 || has_width(node) ? Math.max(most, node.depth + 1) : most, 1)
    while (this.focus > 0 && !has_width(this.nodes[this.focus])) {
      this.focus = this.nodes[this.focus].parent
    }
  }

  /** Returns the children of a node that have a width: from the longest to the shortest. */
  override children_of(id: number): number[] {
    return super.children_of(id).filter((child) => has_width(this.nodes[child]))
  }

  /** Marks the nodes that a search found, and those with the paths of what launched it; a node without slices is found by its name. */
  search(selection: Selection | null, launching: Set<number>): void {
    const {matches: test, labels} = selection ?? {}
    const merged = merged_labels(this.store)
    const found = new Set(Array.from(test == null ? [] : labels!, (label) => merged[label]))
    const matched = new Set<number>()
    const inside = new Uint8Array(this.nodes.length)
    let share = 0
    for (const {id, parent, label, name, x0, x1} of test == null ? [] : this.nodes.slice(1)) {
      const matches = label >= 0 ? found.has(label) : test!(name)
      if (matches) {
        matched.add(id)
        share += inside[parent] == 1 ? 0 : x1 - x0
      }
      inside[id] = Number(matches || inside[parent] == 1)
    }
    this.matched = test == null ? null : matched
    this.launching = test == null ? new Set() : this.with_paths(launching)
    this.matched_share = share
  }
}
