/** The page's engine: decodes the record and answers every question of the views. No DOM, no Bokeh. */

export * from "./header"
export {Store, NONE, REGION_CATEGORIES, type Window} from "./store"
export {op_table, op_row_instances, op_row_key, recorded, type Grouping, type OpRow, type Recorded} from "./op_table"
export {line_instances, line_of_row, line_owners, line_rows, type LineRow} from "./lines"
export {flame, flame_instances, flame_sources, nodes_of_rows, type FlameNode, type FlameSource} from "./flame"
export {hit, level_of_detail, type LevelOfDetail} from "./lod"
export {compile} from "./search"
export type {Link, Role} from "./chain"
export {totals, type DeviceTotals, type Totals} from "./totals"
export {to_csv} from "./csv"
export {format_bytes, format_count, format_flops, format_ns, format_share} from "./format"
export {bands, type Band} from "./bands"
