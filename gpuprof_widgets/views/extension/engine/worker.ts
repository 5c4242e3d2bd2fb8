/** A worker that decodes one record, and answers the questions of the views; see record.ts. */

import {answer, type Answer, type Argument, type Question} from "./answers"
import type {Rows} from "./columns"
import {totals} from "./device_time"
import {bands} from "./names"
import {recorded} from "./op_table"
import {Store, type Found} from "./store"

export type Asked = {question: Question, argument: Argument<Question>}
export type Answered = {answer: Answer<Question>} | {error: string}

/** A decoded record, with what a page would have to find out before it could show anything. */
export type Decoded = {columns: Rows, arrays: Float64Array[], found: Found}

/** What the page sends: the record, once, then questions; those of one moment together. */
export type ToWorker = {bytes: Uint8Array<ArrayBuffer>} | {asked: Asked[]}
/** What comes back: a sign of life, the decoded record, then the answers. */
export type FromWorker = {is_there: true} | {decoded: Decoded} | {answered: Answered[]} | {error: string}

/** Sends the page a message, and hands buffers over to it. */
export type Post = (message: FromWorker, transfer: ArrayBufferLike[]) => void

/** Returns what takes the messages of the page. */
export function worker_of(post: Post): (message: ToWorker) => void {
  let store: Store | null = null
  post({is_there: true}, [])
  return (message) => {
    if ("asked" in message) {
      post({answered: message.asked.map((asked) => answered(store!, asked))}, [])
      return
    }
    try {
      store = Store.of_bytes(message.bytes)
      const decoded = copy_for_page(store)
      post({decoded}, buffers_of(decoded.columns))
    } catch (error) {
      post({error: String(error)}, [])
    }
  }
}

/** Returns what the page needs; it takes the copy over, and need not make one itself. */
function copy_for_page(store: Store): Decoded {
  store.levels(0)
  bands(store)
  totals(store, store.whole)
  recorded(store)
  return structuredClone({columns: store.columns, arrays: store.arrays, found: store.hand_over()})
}

/** Returns the buffers of the columns, of which two may share one. */
function buffers_of(columns: Rows): ArrayBufferLike[] {
  return [...new Set(Object.values(columns).flatMap((column) => column?.buffer ?? []))]
}

function answered(store: Store, {question, argument}: Asked): Answered {
  try {
    return {answer: answer(store, question, argument)}
  } catch (error) {
    return {error: String(error)}
  }
}
