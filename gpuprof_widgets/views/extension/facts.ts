import {chain, MODULES, format_bytes, format_ns} from "./engine"
import type {Link, Store} from "./engine"
import type {Fact} from "./tooltip"

/** What is known about one event, for the tooltip and the detail line. */
export function facts_of(store: Store, row: number): Fact[] {
  const track = store.header.tracks[store.track[row]]
  const duration = store.end[row] - store.ts[row]
  const facts: Fact[] = [["Duration", format_ns(store.ns(duration))]]
  const self = store.self_time(row)
  if (self != duration) {
    facts.push(["Self time", format_ns(store.ns(self))])
  }
  facts.push(["Start", format_ns(store.ns(store.ts[row]))])
  if (store.count[row] > 1) {
    facts.push(["Stands for", `${store.count[row]} short events, merged to save space`])
  }
  if (store.shape(row) != "") {
    facts.push(["Shapes", store.shape(row)])
  }
  if (store.bytes(row) != 0) {
    facts.push(["Size", format_bytes(store.bytes(row))])
  }
  const {module_classes} = store.header
  const name = store.name(row)
  if (MODULES.includes(store.category(row)) && Object.hasOwn(module_classes, name)) {
    facts.push(["Class", module_classes[name]])
  }
  facts.push(["Category", store.category(row)])
  facts.push(track.stream >= 0 ? ["Stream", `${track.stream} on GPU ${track.device}`] : ["Track", track.label])
  return facts
}

/** The owners of an event from the outermost known down to itself, as one line; empty where none is known. */
export function chain_text(store: Store, row: number): string {
  const links = chain(store, row)
  return links.length < 2 ? "" : links.map(({role, text}) => `${ROLES[role]}: ${text}`).join(" › ")
}

/** What the page calls the members of a chain. */
export const ROLES: Record<Link["role"], string> = {
  "line": "line", "annotation": "annotation", "module": "module", "python": "Python", "forward line": "forward line",
  "forward module": "forward module", "forward": "forward op", "op": "op", "launch": "launch", "gpu": "GPU",
}
