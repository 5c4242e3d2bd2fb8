/** A worker that decodes one record, and answers the questions of the views; see record.ts. */

import {answer, type Answer, type Argument, type Question} from "./answers"
import type {Rows} from "./rows"
import {Store} from "./store"

export type Asked = {question: Question, argument: Argument<Question>}
export type Answered = {answer: Answer<Question>} | {error: string}

/** What the page sends: the record, once, then questions; those of one moment together. */
export type ToWorker = {bytes: Uint8Array<ArrayBuffer>} | {asked: Asked[]}
/** What comes back: a sign of life, the decoded record, then the answers. */
export type FromWorker = {is_there: true} | {columns: Rows, arrays: Float64Array[]} | {answered: Answered[]} | {error: string}

/** Returns what takes the messages of the page. */
export function worker_of(post: (message: FromWorker) => void): (message: ToWorker) => void {
  let store: Store | null = null
  post({is_there: true})
  return (message) => {
    if ("asked" in message) {
      post({answered: message.asked.map((asked) => answered(store!, asked))})
      return
    }
    try {
      store = Store.of_bytes(message.bytes)
      post({columns: store.columns, arrays: store.arrays})
    } catch (error) {
      post({error: String(error)})
    }
  }
}

function answered(store: Store, {question, argument}: Asked): Answered {
  try {
    return {answer: answer(store, question, argument)}
  } catch (error) {
    return {error: String(error)}
  }
}
