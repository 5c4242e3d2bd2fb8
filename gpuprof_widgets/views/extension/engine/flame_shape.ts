/** Other shapes of a call tree: without library frames, with recursion collapsed, upside down, and around one function. */

import {UNLAUNCHED, type FlameNode, type FlameSource} from "./flame"
import {NONE, type Store} from "./store"

/** A function, op or region, wherever it is called. */
export type FlameFunction = {category: string, name: string}

/**
 * `down`: call paths from the root. `up`: every function by its self time, its callers below it. `around`: one function,
 * all its calls added up, its callers above it and what it calls below.
 */
export type FlameView = "down" | "up" | "around"

export type FlameShape = {
  view: FlameView
  /** The function in the middle of `around`. */
  centre: FlameFunction | null
  /** Frames that are no user code give their self times to their callers. */
  hides_library: boolean
  /** A call inside of a call of the same function is part of the outer one. */
  collapses_recursion: boolean
}

export const PLAIN: FlameShape = {view: "down", centre: null, hides_library: false, collapses_recursion: false}

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

/** Returns the function of a call path; null for threads and for GPU work without a launch. */
export function function_of({category, name}: FlameFunction): FlameFunction | null {
  return category == "thread" || category == UNLAUNCHED ? null : {category, name: name.replace(ADDRESS, "")}
}

function key_of({category, name}: FlameFunction): string {
  return `${category}\n${name.replace(ADDRESS, "")}`
}

/**
 * Returns a call tree in another shape. All self times add up to those of the plain tree, those `around` a function to its
 * total. The function in the middle has the numbers of all its calls, also of those inside of others; the depths of its
 * callers are negative. The times of a caller, there and upside down, are those that it caused in the function that it calls.
 */
export function reshaped(store: Store, nodes: FlameNode[], {view, centre, hides_library, collapses_recursion}: FlameShape): FlameNode[] {
  const is_library = library_test(store)
  const middle = view == "around" && centre != null ? key_of(centre) : null
  const is_hidden = (node: FlameNode): boolean => hides_library && is_library(node) && key_of(node) != middle
  const kept = hides_library || collapses_recursion ? collapsed(numbered(nodes), is_hidden, collapses_recursion) : nodes
  if (view == "up") {
    return upside_down(numbered(kept))
  }
  return view == "around" && centre != null ? around(numbered(kept), centre) : kept
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

/** A call tree, and the number of each node's function: equal for all its calls. */
type Numbered = {nodes: readonly FlameNode[], functions: number[]}

function numbered(nodes: readonly FlameNode[]): Numbered {
  const numbers = new Map<string, number>()
  const functions = nodes.map((node) => {
    const key = key_of(node)
    const number = numbers.get(key) ?? numbers.size
    numbers.set(key, number)
    return number
  })
  return {nodes, functions}
}

/** Leaves out hidden nodes, and those inside of their like where recursion collapses: the nearest kept node takes their self times. */
function collapsed({nodes, functions}: Numbered, is_hidden: (node: FlameNode) => boolean, collapses_recursion: boolean): FlameNode[] {
  const tree = new GrowingTree(nodes[0], functions[0])
  const places = [0]
  for (const node of nodes.slice(1)) {
    const caller = places[node.parent]
    const called = functions[node.id]
    if (is_hidden(node)) {
      places.push(caller)
      tree.add(caller, {...node, calls: 0, paths: []})
    } else {
      const outer = collapses_recursion ? tree.nearest(caller, called) : NONE
      places.push(outer == NONE ? tree.child(caller, node, called) : outer)
      tree.add(places[node.id], node)
    }
  }
  return tree.summed()
}

function upside_down(tree: Numbered): FlameNode[] {
  const {nodes, functions} = tree
  const grown = new GrowingTree(nodes[0], functions[0])
  const least = least_of(nodes[0])
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
    grown.add_callers(place, tree, of_function.map((node) => ({...node, at: node.id})), {
      time: Math.min(least.time, grown.nodes[place].total*LEAST_OF_FUNCTION),
      device: Math.min(least.device, grown.nodes[place].device*LEAST_OF_FUNCTION),
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

function around(tree: Numbered, centre: FlameFunction): FlameNode[] {
  const {nodes, functions} = tree
  const key = key_of(centre)
  const first = nodes.find((node) => key_of(node) == key)
  const called = first == null ? NONE : functions[first.id]
  const root = bare_node({...centre, label: first?.label ?? NONE, id: 0, parent: NONE, depth: 0})
  const below = new GrowingTree(root, called)
  const places: number[] = []
  const outermost: Call[] = []
  for (const node of nodes) {
    const caller = places[node.parent] ?? NONE
    if (functions[node.id] == called && caller == NONE) {
      outermost.push({...node, self: node.total, device_self: node.device, at: node.id})
    }
    places.push(functions[node.id] == called ? 0 : caller == NONE ? NONE : below.child(caller, node, functions[node.id]))
    if (places[node.id] != NONE) {
      below.add(places[node.id], node)
    }
  }
  const above = new GrowingTree(root, called, -1)
  above.add_callers(0, tree, outermost, least_of(below.summed()[0]))
  return joined(below.nodes, above.nodes)
}

/** The least times of a caller that is there. */
type Least = {time: number, device: number}

function least_of({total, device}: FlameNode): Least {
  return {time: total*LEAST_OF_ALL, device: device*LEAST_OF_ALL}
}

/** Puts the callers behind what is below the same root. */
function joined(below: FlameNode[], above: FlameNode[]): FlameNode[] {
  const shift = below.length - 1
  const moved = (id: number): number => id == 0 ? 0 : id + shift
  return [...below, ...above.slice(1).map((node) => ({...node, id: moved(node.id), parent: moved(node.parent)}))]
}

function bare_node(node: Pick<FlameNode, "id" | "parent" | "depth" | "label" | "name" | "category">): FlameNode {
  const {id, parent, depth, label, name, category} = node
  const none = {calls: 0, total: 0, self: 0, device: 0, device_self: 0, x0: 0, x1: 0}
  return {id, parent, depth, label, name: name.replace(ADDRESS, ""), category, paths: [], ...none}
}

type Numbers = Pick<FlameNode, "paths" | "calls" | "self" | "device_self">

/** Calls of one path; `at`: the node among their callers that was reached. */
type Call = Numbers & {at: number}

/** A tree that grows from its root, parents before children. */
class GrowingTree {
  readonly nodes: FlameNode[]
  private readonly functions: number[]
  private readonly children = [new Map<number, number>()]

  /** `step`: the depth of a child less that of its parent. */
  constructor(root: FlameNode, called: number, private readonly step: 1 | -1 = 1) {
    this.nodes = [{...root}]
    this.functions = [called]
  }

  /** Returns the child of a node for a function, that of another tree's node. */
  child(parent: number, {label, name, category}: FlameNode, called: number): number {
    let place = this.children[parent].get(called)
    if (place == null) {
      place = this.nodes.length
      this.children[parent].set(called, place)
      this.children.push(new Map())
      this.functions.push(called)
      this.nodes.push(bare_node({id: place, parent, depth: this.nodes[parent].depth + this.step, label, name, category}))
    }
    return place
  }

  /** Returns the nearest node of a function from a node on up to the root, -1 for none. */
  nearest(from: number, called: number): number {
    let place = from
    while (place != NONE && this.functions[place] != called) {
      place = this.nodes[place].parent
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
  add_callers(place: number, tree: Numbered, calls: Call[], least: Least): void {
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
