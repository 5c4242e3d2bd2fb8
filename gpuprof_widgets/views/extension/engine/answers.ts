/** The questions that the views ask of a record, each of which takes time that grows with the record. */

import {activity, type ActivityKind} from "./activity"
import type {Window} from "./columns"
import {flame, path_instances, row_paths, type FlameSource} from "./flame"
import {PLAIN, reshaped, type FlameShape} from "./flame_shape"
import type {Cell} from "./header"
import {line_rows} from "./lines"
import {op_table, type Grouping} from "./op_table"
import {panel} from "./panels"
import type {Store} from "./store"

/** An analysis in a range: values by column and row, and the rows of which something lies in the range. */
export type PanelAnswer = {values: Cell[][], present: number[]}

/** Arguments and answers are such as a worker can be sent. */
const QUESTIONS = {
  op_table: (store: Store, {window, grouping}: {window: Window, grouping: Grouping}) => op_table(store, window, grouping),
  flame: (store: Store, {window, source, shape = PLAIN}: {window: Window, source: FlameSource, shape?: FlameShape}) =>
    reshaped(store, flame(store, window, source), shape),
  path_instances: (store: Store, {source, paths}: {source: FlameSource, paths: number[]}) => path_instances(store, source, paths),
  row_paths: (store: Store, {source, rows}: {source: FlameSource, rows: Int32Array}) => row_paths(store, source, rows),
  activity: (store: Store, {kinds, window, pixels}: {kinds: ActivityKind[], window: Window, pixels: number}) =>
    kinds.map((kind) => activity(store, kind, window, pixels)),
  lines: (store: Store, {window}: {window: Window}) => line_rows(store, window),
  panel: (store: Store, {window, name}: {window: Window, name: string}): PanelAnswer => {
    const data = panel(store, name)!
    const present = data.present(window)
    return {values: data.values(window), present: Array.from(present.keys()).filter((row) => present[row] == 1)}
  },
}

type Questions = typeof QUESTIONS
export type Question = keyof Questions
export type Argument<Q extends Question> = Parameters<Questions[Q]>[1]
export type Answer<Q extends Question> = ReturnType<Questions[Q]>

/** Answers a question, in a worker or on the page itself. */
export function answer<Q extends Question>(store: Store, question: Q, argument: Argument<Q>): Answer<Q> {
  return (QUESTIONS[question] as (store: Store, argument: Argument<Q>) => Answer<Q>)(store, argument)
}
