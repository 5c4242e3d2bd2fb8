import type {Fact} from "./tooltip"

/** What is selected, said by the view in which it was selected; every view shows it in its own way. */
export type Selection = {
  source: "timeline" | "flame" | "table" | "lines" | "finding" | "memory" | "panel"
  /** The one selected event, -1 where all instances of a name or node are meant. */
  row: number
  /** Rows that the timeline highlights. */
  rows: Int32Array
  /** Ranges that the timeline highlights where there is no row: start and end (ns), and track, -1 for all tracks. */
  ranges?: [number, number, number][]
  /** Keeps two selections apart: the key of the table row, the flame node, the event or the finding. */
  key: string
  /** The names that are meant (indices into the header's labels). */
  labels: Set<number>
  /** What the detail line says. */
  text: string
  /** Its numbers in the brushed range. */
  facts?: () => Fact[]
}

export function same_selection(a: Selection | null, b: Selection | null): boolean {
  return a === b || (a != null && b != null && a.source == b.source && a.key == b.key && a.row == b.row)
}
