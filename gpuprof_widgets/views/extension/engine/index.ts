/** The page's engine: decodes the record and answers every question of the views. No DOM, no Bokeh. */

export * from "./header"
export type {ActivityKind} from "./activity"
export {answer, type Answer, type Argument, type PanelAnswer, type Question} from "./answers"
export {decode_header, unpack} from "./decode"
export type {Asked, FromWorker, ToWorker} from "./worker"
export type {Window} from "./columns"
export {Store, NONE, REGION_CATEGORIES} from "./store"
export {op_table, op_row_instances, op_row_keys, recorded, self_times, type Grouping, type OpRow, type Recorded, type SelfTimes} from "./op_table"
export {line_instances, line_of_row, line_owners, line_rows, sign_of, why_inexact, type LineRow, type LineValue} from "./lines"
export {change_of, lay_out, paired_tree, type DiffNode} from "./diff"
export {
  flame, flame_sources, flame_width, laid_out, path_instances, row_paths, UNLAUNCHED,
  type FlameNode, type FlameSource, type FlameTime,
} from "./flame"
export {has_library, PLAIN, reshaped, type FlameShape} from "./flame_shape"
export {
  hit, lanes_of_rows, level_of_detail, marks_of, type LaneSlices, type LevelOfDetail,
} from "./lod"
export {listed_name, match_text, match_totals, matching_calls, search, sum_of_totals, type Matches, type MatchTotals} from "./search"
export {instance_from, next_instance, place_of_instance, type Instance, type Selected} from "./instances"
export {compile, kernel_name, matcher, type Matcher} from "./names"
export {chain, MODULES, type Link, type Role} from "./chain"
export {totals, type DeviceTotals, type Totals} from "./device_time"
export {
  CHANGE_BAR, column_text, compare_names, fitted, is_empty, sorted, to_csv, WIDEST_SHARE, widths_of,
  type Column, type Measure, type Order, type Width,
} from "./table"
export {
  cell_text, format_bytes, format_change, format_count, format_moment, format_ns, format_ratio, format_share, format_ticks,
  plain,
} from "./format"
export {bands, merged_labels, merged_name, type Band} from "./names"
export {Memory, type MemoryBlock, type MemoryDevice} from "./memory"
export {has_path, PanelData, panel, path_pieces, PATH_PANEL, PYTHON_PANEL, type PanelColumn, type PanelCurve, type PathPiece} from "./panels"
export {at_time, drawn_steps, fullest_stretch} from "./intervals"
export {Gestures, History, type State} from "./history"
export {step_aside, step_level} from "./neighbours"
