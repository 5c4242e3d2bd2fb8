import {Memory, format_bytes, format_ns} from "./engine"
import type {MemoryBlock} from "./engine"
import type {Fact} from "./tooltip"
import type {TraceStore} from "./trace_store"
import {reveal} from "./viewport"

/** The record's memory, put together once for all views. */
export function memory_of({data}: TraceStore): Memory {
  return data.lazily("memory", () => new Memory(data.header.memory!))
}

/** Selects a block: the op that allocated it lights up on the timeline. Null selects nothing. */
export function select_block(store: TraceStore, block: MemoryBlock | null): void {
  if (block == null) {
    store.choose(null)
    return
  }
  const rows = [block.op, block.row, block.release].filter((row) => row >= 0)
  const category = memory_of(store).categories[block.category]
  store.choose({
    source: "memory",
    row: rows[0] ?? -1,
    rows: Int32Array.from(rows).sort(),
    key: `memory ${block.index}`,
    labels: new Set(rows.map((row) => store.data.label[row])),
    text: `${format_bytes(block.bytes)} of ${category}`,
  })
}

/** The selected block; of an event that was selected elsewhere the biggest block that it allocated or released. */
export function selected_block(store: TraceStore): MemoryBlock | null {
  const {selection} = store
  if (selection == null) {
    return null
  }
  const {blocks} = memory_of(store)
  if (selection.source == "memory") {
    return blocks.find(({index}) => selection.key == `memory ${index}`) ?? null
  }
  const {row} = selection
  const own = row < 0 ? [] : blocks.filter((block) => block.op == row || block.row == row || block.release == row)
  return own.reduce<MemoryBlock | null>((most, block) => most == null || block.bytes > most.bytes ? block : most, null)
}

/** Selects the biggest block that was alive when a device held most, and brings that moment into view. */
export function go_to_peak(store: TraceStore, device: number): void {
  const memory = memory_of(store)
  const {moments} = memory.devices[device]
  const peak = memory.devices[device].fullest(...store.bounds)
  if (peak >= 0) {
    select_block(store, memory.living(device, moments[peak], moments[peak])[0] ?? null)
    reveal(store, moments[peak], moments[peak])
  }
}

/** From when on a block lived and for how long, in words. */
export function lifetime({start, end}: MemoryBlock): string {
  if (start == -Infinity) {
    return end == Infinity ? "before and after the record" : `from before the record until ${format_ns(end)}`
  }
  return end == Infinity ? `from ${format_ns(start)} on` : `from ${format_ns(start)} for ${format_ns(end - start)}`
}

/** What is known about a block, for the tooltip. */
export function block_facts(block: MemoryBlock): Fact[] {
  const facts: Fact[] = [["Lives", lifetime(block)]]
  const known: Fact[] = [
    ["Line", block.line_name], ["Module", block.module_name], ["Op", block.op_name], ["Tensor", block.tensor],
  ]
  return [...facts, ...known.filter(([, value]) => value != "")]
}
