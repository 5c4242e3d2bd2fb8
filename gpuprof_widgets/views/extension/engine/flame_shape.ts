/** Other shapes of a call tree: without library frames, and upside down. */

import type {FlameNode, FlameSource} from "./flame"
import {NONE, type Store} from "./store"

export type FlameShape = {
  /** Every function by its self time, its callers below it; else call paths from the root. */
  bottom_up: boolean
  /** Frames that are no user code give their self times to their callers. */
  hides_library: boolean
}

export const PLAIN: FlameShape = {bottom_up: false, hides_library: false}

/**
 * Callers are left out that caused less than this of all time, and less than that of the time of the function that they call:
 * there are as many chains of callers as call paths times their depth.
 */
const LEAST_OF_ALL = 1/1000
const LEAST_OF_FUNCTION = 1/20

/** The bar of what hidden library frames took that no code of the user's called. */
const UNOWNED = "libraries that your code did not call"

/** Built-in methods are named with the address of their object. */
const ADDRESS = / at 0x[0-9a-fA-F]+/g

/**
 * Returns a call tree in another shape. All self times add up to those of the plain tree. The times of a caller, upside
 * down, are those that it caused in the function that it calls.
 */
export function reshaped(store: Store, nodes: FlameNode[], {bottom_up, hides_library}: FlameShape): FlameNode[] {
  const kept = hides_library ? without(nodes, library_test(store)) : nodes
  return bottom_up ? upside_down(kept) : kept
}

/** Whether call trees of a source have frames that are no user code. */
export function has_library({header: {library, calls}}: Store, source: FlameSource): boolean {
  return source == "merged" ? library.length > 0 : source == "cprofile" && calls!.some(({library}) => library)
}

/** Returns a test of nodes: whether they are Python frames that are no user code. */
function library_test({header: {library, calls}}: Store): (node: FlameNode) => boolean {
  const labels = new Set(library)
  return ({label, category, paths}) => category == "cprofile" ? paths.some((path) => calls![path].library) : labels.has(label)
}

/** Returns the number of each node's function: equal for all its calls. */
function function_numbers(nodes: readonly FlameNode[]): number[] {
  const numbers = new Map<string, number>()
  return nodes.map(({category, name}) => {
    const key = `${category}\n${name.replace(ADDRESS, "")}`
    const number = numbers.get(key) ?? numbers.size
    numbers.set(key, number)
    return number
  })
}

/** Leaves out hidden nodes: the nearest kept node around them takes their self times. */
function without(nodes: readonly FlameNode[], is_hidden: (node: FlameNode) => boolean): FlameNode[] {
  const functions = function_numbers(nodes)
  const tree = new GrowingTree(nodes[0])
  const places = [0]
  for (const node of nodes.slice(1)) {
    const caller = places[node.parent]
    const hidden = is_hidden(node)
    places.push(hidden ? caller : tree.child(caller, node, functions[node.id]))
    tree.add(places[node.id], hidden ? {...node, calls: 0, paths: []} : node)
  }
  return tree.summed()
}

function upside_down(nodes: readonly FlameNode[]): FlameNode[] {
  const functions = function_numbers(nodes)
  const grown = new GrowingTree(nodes[0])
  const [{total, device}] = nodes
  const calls = new Map<number, FlameNode[]>()
  for (const node of nodes) {
    if (node.category == "thread" || node.id == 0) {
      add_unowned(grown, node)
    } else {
      const of_function = calls.get(functions[node.id]) ?? []
      calls.set(functions[node.id], of_function)
      of_function.push(node)
    }
  }
  for (const [called, of_function] of calls) {
    const place = grown.child(0, of_function[0], called)
    of_function.forEach((node) => grown.weigh(place, node))
    grown.add_callers(place, {nodes, functions}, of_function.map((node) => ({...node, at: node.id})), {
      time: Math.min(total*LEAST_OF_ALL, grown.nodes[place].total*LEAST_OF_FUNCTION),
      device: Math.min(device*LEAST_OF_ALL, grown.nodes[place].device*LEAST_OF_FUNCTION),
    })
  }
  return grown.nodes
}

/** Time of a thread itself is that of hidden frames which nothing else called. */
function add_unowned(grown: GrowingTree, thread: FlameNode): void {
  if (thread.self > 0 || thread.device_self > 0) {
    grown.weigh(grown.child(0, {...thread, label: NONE, name: UNOWNED, category: "thread"}, NONE), {...thread, calls: 0, paths: []})
  }
}

type Numbers = Pick<FlameNode, "paths" | "calls" | "self" | "device_self">

/** Calls of one path; `at`: the node among their callers that was reached. */
type Call = Numbers & {at: number}

/** A tree that grows from its root, parents before children. */
class GrowingTree {
  readonly nodes: FlameNode[]
  private readonly children = [new Map<number, number>()]

  constructor(root: FlameNode) {
    this.nodes = [{...root}]
  }

  /** Returns the child of a node for a function, that of another tree's node. */
  child(parent: number, {label, name, category}: FlameNode, called: number): number {
    let place = this.children[parent].get(called)
    if (place == null) {
      place = this.nodes.length
      this.children[parent].set(called, place)
      this.children.push(new Map())
      this.nodes.push({
        id: place, parent, depth: this.nodes[parent].depth + 1, label, name: name.replace(ADDRESS, ""), category, paths: [],
        calls: 0, total: 0, self: 0, device: 0, device_self: 0, x0: 0, x1: 0,
      })
    }
    return place
  }

  add(place: number, {paths, calls, self, device_self}: Numbers): void {
    const into = this.nodes[place]
    into.self += self
    into.device_self += device_self
    into.calls += calls
    paths.forEach((path) => into.paths.push(path))
  }

  /** Adds to a node whose totals are the times that are added, whatever is below it. */
  weigh(place: number, numbers: Numbers): void {
    this.add(place, numbers)
    this.nodes[place].total += numbers.self
    this.nodes[place].device += numbers.device_self
  }

  /** Adds the callers of some calls as children, and theirs in turn, as far as they caused enough time. */
  add_callers(
    place: number, tree: {nodes: readonly FlameNode[], functions: number[]}, calls: Call[], least: {time: number, device: number},
  ): void {
    const {nodes, functions} = tree
    const callers = new Map<number, Call[]>()
    for (const call of calls) {
      const at = nodes[call.at].parent
      if (at > 0) {
        const by_caller = callers.get(functions[at]) ?? []
        callers.set(functions[at], by_caller)
        by_caller.push({...call, at})
      }
    }
    for (const [caller, by_caller] of callers) {
      const time = by_caller.reduce((sum, {self}) => sum + self, 0)
      const device = by_caller.reduce((sum, {device_self}) => sum + device_self, 0)
      if (time > 0 && time >= least.time || device > 0 && device >= least.device) {
        const child = this.child(place, nodes[by_caller[0].at], caller)
        by_caller.forEach((call) => this.weigh(child, call))
        this.add_callers(child, tree, by_caller, least)
      }
    }
  }

  /** Returns the nodes with the totals of all that is below them. */
  summed(): FlameNode[] {
    const {nodes} = this
    for (const node of nodes) {
      node.total = node.self
      node.device = node.device_self
    }
    for (let id = nodes.length - 1; id > 0; id--) {
      nodes[nodes[id].parent].total += nodes[id].total
      nodes[nodes[id].parent].device += nodes[id].device
    }
    return nodes
  }
}
