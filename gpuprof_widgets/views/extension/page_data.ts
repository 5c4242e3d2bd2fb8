import type {TableHeader} from "./engine"
import {table} from "./engine/header_check"
import {demand, either, fields, flag, list, nothing, number, one_of, text, then, tuple, whole, type Check} from "./engine/shapes"
import type {FindingLine, Focus, Remark} from "./report_state"
import type {PlainTable} from "./static_tables"
import type {Card} from "./summary_cards"

/** A trace, and what is said of it, as views/page.py sends it; times in ns. */
export type StoreData = {
  uid: string
  /** the encoded record, see engine/header.ts */
  payload: string
  label: string
  on_gpu: boolean
  remarks: Remark[]
}

export type ReportStoreData = StoreData & {
  rows_kept: boolean
  findings: FindingLine[]
  notes: string[]
  focus: Focus | null
  sort: string
  functions_sort: string
  start: number
  end: number
}

/** The page of one trace, with these views in their order. */
export type ReportData = {kind: "report", store: ReportStoreData, views: ViewName[], cards: Card[]}

export type ViewName = "timeline" | "lines" | "flame_graph" | "op_table" | "memory" | "analyses"

/** Several traces on one time axis that ends at `end`. */
export type GroupData = {
  stores: StoreData[]
  end: number
  titles: string[]
  label: string
  findings: FindingLine[]
  notes: string[]
}

export type TimelinesData = GroupData & {kind: "timelines", busy: string, tables: PlainTable[]}

export type ComparisonData = GroupData & {kind: "comparison", has_times: boolean, steps: [number, number][][], tables: TableHeader[]}

export type PageData = ReportData | TimelinesData | ComparisonData

const MOST_STORES = 1024

const optional_number = either(number, nothing)
const row = whole(-1, 2 ** 31)
const moment = whole()

const evidence = {start: optional_number, end: optional_number, rows: list(row), events: whole(0)}
const finding = {...evidence, title: text, text, remedy: text, cost: number, share: number, line: row, look_at: text, function: text}
const is_part = {is_part: flag}
const card = fields({...evidence, label: text, value: text, detail: text, about: text, panel: text, view: text})
const remark = fields({text, start: number, end: number})

const store = {uid: text, payload: text, label: text, on_gpu: flag, remarks: list(remark)}
const report_store = then<ReportStoreData>(fields({
  ...store,
  rows_kept: flag,
  findings: list(fields(finding, is_part)),
  notes: list(text),
  focus: either(nothing, fields({...evidence, text})),
  sort: text,
  functions_sort: text,
  start: moment,
}), ({start}) => fields({end: whole(start + 1)}))

/** Several traces: at most, or exactly, so many. */
function group(size: {most?: number, length?: number}, more: Record<string, Check>): Check {
  const shape = fields({...more, stores: list(fields(store), size), end: whole(1), label: text, notes: list(text)})
  return then<GroupData>(shape, ({stores: {length}}) =>
    fields({titles: list(text, {length}), findings: list(fields(finding, {of: whole(0, length)}))}))
}

const delta_table = then<TableHeader>(table({key: text, noun: text, total: whole(0)}), ({length}) => fields({
  changed: list(flag, {length}),
  category: list(text, {length}),
  names: list(tuple(list(text), list(text)), {length}),
}))

const stretch = tuple(number, number, number, number, number, number)
const plain_table = fields({
  title: text,
  notes: list(text),
  columns: list(tuple(text, flag)),
  rows: list(list(text)),
  fills: list(tuple(whole(0, 1000), list(list(stretch)))),
  legend: list(tuple(text, tuple(number, number, number, number))),
})

const PAGES: Record<PageData["kind"], Check> = {
  report: fields({
    store: report_store,
    views: list(one_of("timeline", "lines", "flame_graph", "op_table", "memory", "analyses"), {most: 6}),
    cards: list(card),
  }),
  timelines: group({most: MOST_STORES}, {busy: text, tables: list(plain_table)}),
  comparison: group({length: 2}, {
    has_times: flag, steps: list(list(tuple(number, number)), {length: 2}),
    tables: list(delta_table),
  }),
}

/** Returns the data of a page; throws a `DamagedData` where anything is not as it should be. */
export function page_data(json: string): PageData {
  const data = JSON.parse(json) as PageData
  demand(fields({kind: one_of(...Object.keys(PAGES))}), data)
  demand(PAGES[data.kind], data)
  return data
}
