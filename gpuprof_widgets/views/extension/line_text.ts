import type {Store} from "./engine"

/** What stands in the lines view: a line with the index of its row of numbers (-1 for none), or a gap. */
export type TextLine = {kind: "line", number: number, text: string, index: number} | {kind: "gap", lines: number}

export type CellSource = {name: string, lines: TextLine[]}

/** Of a longer stretch in which no statement was recorded, only this many lines beside one are shown. */
const AROUND = 3

/** The text of every recorded cell; where it is not known, of the lines that ran. */
export function cell_sources(store: Store): CellSource[] {
  const table = store.header.lines
  return (table?.cells ?? []).map(({name, first, text}, cell) => {
    const index_of = new Map(table!.lines.flatMap(([of, number], index) => of == cell ? [[number, index]] : []))
    const code_of = new Map(table!.lines.flatMap(([of, number, code]) => of == cell ? [[number, code]] : []))
    const numbers = text.length > 0 ? text.map((_, i) => first + i) : [...index_of.keys()]
    const lines = numbers.map((number): TextLine & {kind: "line"} =>
      ({kind: "line", number, text: text[number - first] ?? code_of.get(number) ?? "", index: index_of.get(number) ?? -1}))
    return {name, lines: without_long_gaps(lines)}
  })
}

function without_long_gaps(lines: (TextLine & {kind: "line"})[]): TextLine[] {
  const shown: TextLine[] = []
  let silent: typeof lines = []
  const close = (is_last: boolean): void => {
    const before = shown.length == 0 ? 0 : AROUND
    const after = is_last ? 0 : AROUND
    if (silent.length <= before + after + AROUND) {
      shown.push(...silent)
    } else {
      const left_out = silent.length - before - after
      shown.push(...silent.slice(0, before), {kind: "gap", lines: left_out}, ...silent.slice(before + left_out))
    }
    silent = []
  }
  for (const line of lines) {
    if (line.index < 0) {
      silent.push(line)
    } else {
      close(false)
      shown.push(line)
    }
  }
  close(true)
  return shown
}
