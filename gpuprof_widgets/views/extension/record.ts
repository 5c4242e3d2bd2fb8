import {
  answer, decode_header, Store, unpack, type Answer, type Argument, type Asked, type FromWorker, type Header, type Question, type ToWorker,
} from "./engine"
import {WORKER_SCRIPT} from "./worker_script"

/** A record with fewer rows is decoded, and each question about it answered, in less time than a worker takes to begin. */
const WORTH_A_WORKER = 20_000

const PATIENCE_MS = 5_000

/** A decoded record, and what answers questions about it. */
export type DecodedRecord = {data: Store, answers: Answers}

/** Answers questions, one after the other. */
export interface Answers {
  /** Of one asker's questions of a kind that wait for their turn, the last one alone is answered: the others never are. */
  ask<Q extends Question>(question: Q, argument: Argument<Q>, asker: object): Promise<Answer<Q>>
  /** Whether no question is open. */
  readonly is_idle: boolean
  /** Where the answers are found; null on the page itself. Its owner has to end it. */
  readonly worker: Worker | null
}

/** Decodes a record: a large one in a worker, where the page may start one. */
export async function decode_record(payload: string): Promise<DecodedRecord> {
  const bytes = await unpack(payload)
  const header = decode_header(bytes)
  const worker = header.rows < WORTH_A_WORKER ? null : await start_worker()
  if (worker == null) {
    return decode_here(bytes)
  }
  try {
    return await decode_in(worker, header, bytes)
  } catch {
    worker.terminate()
    return decode_here(await unpack(payload)) // the worker has taken the bytes; what is wrong with them shows here as well
  }
}

function decode_here(bytes: Uint8Array<ArrayBuffer>): DecodedRecord {
  const data = Store.of_bytes(bytes)
  return {data, answers: new PageAnswers(data)}
}

/** Returns a worker that has begun; null where the page may have none, as under a policy that names no `worker-src`. */
async function start_worker(): Promise<Worker | null> {
  const url = URL.createObjectURL(new Blob([WORKER_SCRIPT], {type: "text/javascript"}))
  try {
    const worker = new Worker(url)
    const has_begun = await new Promise<boolean>((resolve) => {
      worker.onmessage = () => resolve(true)
      worker.onerror = () => resolve(false)
      setTimeout(() => resolve(false), PATIENCE_MS) // a front end may refuse without a word
    })
    if (!has_begun) {
      worker.terminate()
    }
    return has_begun ? worker : null
  } catch {
    return null
  } finally {
    URL.revokeObjectURL(url)
  }
}

function decode_in(worker: Worker, header: Header, bytes: Uint8Array<ArrayBuffer>): Promise<DecodedRecord> {
  return new Promise((resolve, reject) => {
    worker.onerror = ({message}) => reject(new Error(message))
    worker.onmessage = ({data: message}: MessageEvent<FromWorker>) => {
      if ("decoded" in message) {
        const {columns, arrays, found} = message.decoded
        const data = new Store(header, columns, arrays, found)
        resolve({data, answers: new WorkerAnswers(worker, data)})
      } else if ("error" in message) {
        reject(new Error(message.error))
      }
    }
    post(worker, {bytes}, [bytes.buffer])
  })
}

function post(worker: Worker, message: ToWorker, transfer: Transferable[] = []): void {
  worker.postMessage(message, transfer)
}

/** Answers on the page itself. */
class PageAnswers implements Answers {
  readonly worker = null
  private waiting: {asker: object, question: Question}[] = []

  constructor(private readonly store: Store) {}

  get is_idle(): boolean {
    return this.waiting.length == 0
  }

  async ask<Q extends Question>(question: Q, argument: Argument<Q>, asker: object): Promise<Answer<Q>> {
    if (this.store.rows >= WORTH_A_WORKER) {
      await this.turn(asker, question)
    }
    return answer(this.store, question, argument)
  }

  /** Comes after the range has been painted; never where the asker asks again before that. */
  private turn(asker: object, question: Question): Promise<void> {
    const waiting = {asker, question}
    this.waiting = [...this.waiting.filter((other) => !is_same(other, waiting)), waiting]
    return new Promise((resolve) => {
      setTimeout(() => {
        if (this.waiting.includes(waiting)) {
          this.waiting = this.waiting.filter((other) => other !== waiting)
          resolve()
        }
      })
    })
  }
}

function is_same(a: {asker: object, question: Question}, b: {asker: object, question: Question}): boolean {
  return a.asker === b.asker && a.question == b.question
}

type Waiting = Asked & {asker: object, resolve: (answer: never) => void, reject: (error: Error) => void}

/**
 * Answers in a worker. Questions of one moment are asked, and answered, together: the views change in one frame. Where
 * the worker breaks down, the page answers by itself.
 */
class WorkerAnswers implements Answers {
  private waiting: Waiting[] = []
  private asked: Waiting[] = []
  /** What answers in the worker's place. */
  private substitute: PageAnswers | null = null

  constructor(readonly worker: Worker, private readonly store: Store) {
    worker.onmessage = ({data}: MessageEvent<FromWorker>) => this.take(data)
    worker.onerror = () => this.break_down()
  }

  get is_idle(): boolean {
    return this.substitute?.is_idle ?? this.asked.length + this.waiting.length == 0
  }

  ask<Q extends Question>(question: Q, argument: Argument<Q>, asker: object): Promise<Answer<Q>> {
    if (this.substitute != null) {
      return this.substitute.ask(question, argument, asker)
    }
    return new Promise((resolve, reject) => {
      const waiting = {asker, question, argument, resolve, reject}
      this.waiting = [...this.waiting.filter((other) => !is_same(other, waiting)), waiting]
      queueMicrotask(() => this.ask_next())
    })
  }

  private ask_next(): void {
    if (this.asked.length == 0 && this.waiting.length > 0) {
      this.asked = this.waiting
      this.waiting = []
      post(this.worker, {asked: this.asked.map(({question, argument}) => ({question, argument}))})
    }
  }

  private take(message: FromWorker): void {
    if ("answered" in message) {
      const {asked} = this
      this.asked = []
      message.answered.forEach((answered, i) => {
        if ("error" in answered) {
          asked[i].reject(new Error(answered.error))
        } else {
          asked[i].resolve(answered.answer as never)
        }
      })
      this.ask_next()
    }
  }

  /** From now on the page answers by itself. */
  private break_down(): void {
    this.worker.terminate()
    const substitute = new PageAnswers(this.store)
    const open = [...this.asked, ...this.waiting]
    this.substitute = substitute
    this.asked = []
    this.waiting = []
    for (const {question, argument, asker, resolve, reject} of open) {
      void substitute.ask(question, argument, asker).then(resolve as never, reject)
    }
  }
}
