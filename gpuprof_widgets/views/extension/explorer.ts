import type {Selection, TraceState} from "./report_state"

/**
 * The state that a report shares with an `Explorer` in Python (explorer.py): ranges in ns, rows as bytes of int32, and
 * the choices of the views, null where Python has made none. `_uid` names the reports of the profile that is shown.
 */
export type SharedState = {
  range: [number, number], visible: [number, number], _rows: DataView, _about: string, _is_finding: boolean, _uid: string,
} & {[name in Choice]: string | null}

/** Properties of the store that are traits of the same names. */
export const CHOICES = ["sort", "group_by", "metric", "search"] as const
type Choice = typeof CHOICES[number]

/** What of a report is shared with Python. */
type Explored = TraceState & {[name in Choice]: string} & {
  readonly uid: string
  readonly rows_kept: boolean
  readonly trace_bounds: [number, number]
  teller: Teller | null
  clipped(range: [number, number]): [number, number]
  readonly called_up: {emit(): void}
}

/** A model of the widgets' front end: what is set is sent to the kernel by `save_changes`. */
export type Kernel = {
  get<K extends keyof SharedState>(name: K): SharedState[K]
  set<K extends keyof SharedState>(name: K, value: SharedState[K]): void
  save_changes(): void
  on(event: string, callback: (message: unknown) => void): void
}

/** Keeps a report and an explorer in Python in step. What Python has set before is shown at once. */
export function join(store: Explored, kernel: Kernel): void {
  show_range(store, kernel)
  show_choices(store, kernel)
  show_rows(store, kernel)
  show_visible(store, kernel)
  listen(kernel, new WeakRef(store))
  store.teller = new Teller(() => {
    if (kernel.get("_uid") == store.uid) {
      tell(store, kernel)
    }
  })
  store.teller.tell()
}

function tell(store: Explored, kernel: Kernel): void {
  if (!same_range(shown_range(store, kernel), range_of(store))) {
    kernel.set("range", range_of(store))
  }
  kernel.set("visible", visible_of(store))
  CHOICES.forEach((name) => kernel.set(name, store[name]))
  if (store.rows_kept && !same_rows(rows_in(kernel), rows_of(store.selection))) {
    kernel.set("_about", store.selection?.text ?? "")
    kernel.set("_is_finding", store.selection?.source == "finding")
    kernel.set("_rows", bytes_of(rows_of(store.selection)))
  }
  kernel.save_changes()
}

/** Has something told at the first change of a frame, and what has changed since then in the next frame. */
export class Teller {
  private is_waiting = false
  private is_due = false

  constructor(private readonly send: () => void) {}

  tell(): void {
    if (this.is_waiting) {
      this.is_due = true
    } else {
      this.wait()
      this.send()
    }
  }

  /** Tells nothing before the next frame. */
  wait(): void {
    if (!this.is_waiting) {
      this.is_waiting = true
      requestAnimationFrame(() => {
        this.is_waiting = false
        if (this.is_due) {
          this.is_due = false
          this.tell()
        }
      })
    }
  }
}

/** Follows the kernel. A report that has left the page is let go of, though its explorer lives on in the kernel. */
function listen(kernel: Kernel, held: WeakRef<Explored>): void {
  type Show = (store: Explored, kernel: Kernel, message: unknown) => void
  const follow = (event: string, show: Show): void => kernel.on(event, (message) => {
    const store = held.deref()
    if (store != null && kernel.get("_uid") == store.uid) {
      store.teller?.wait()  // the kernel may have set more, of which this is the first
      show(store, kernel, message)
    }
  })
  follow("change:range", show_range)
  follow("change:visible", show_visible)
  follow("change:_rows", show_rows)
  CHOICES.forEach((name) => follow(`change:${name}`, show_choices))
  follow("msg:custom", (store, _, message) => message === CALL_UP && store.called_up.emit())
}

/** What Python sends to bring the timeline onto the screen. */
const CALL_UP = "call up"

/** The brushed range in ns, the whole trace where nothing is brushed. */
function range_of(store: Explored): [number, number] {
  return store.window ?? store.trace_bounds
}

function visible_of({visible: {start, end}}: Explored): [number, number] {
  return [Math.round(start), Math.round(end)]
}

/** What the page shows of the range in Python, whose ends are moments of whole ticks here. */
function shown_range(store: Explored, kernel: Kernel): [number, number] {
  const range = kernel.get("range")
  return same_range(range, store.trace_bounds) ? range : store.clipped(range)
}

function show_range(store: Explored, kernel: Kernel): void {
  const range = shown_range(store, kernel)
  if (!same_range(range, range_of(store))) {
    store.brush(same_range(range, store.trace_bounds) ? null : range)
  }
}

function show_choices(store: Explored, kernel: Kernel): void {
  for (const name of CHOICES) {
    const value = kernel.get(name)
    if (value != null) {
      store[name] = value
    }
  }
}

function show_visible(store: Explored, kernel: Kernel): void {
  const [start, end] = kernel.get("visible")
  if (!same_range([start, end], visible_of(store))) {
    store.visible.setv({start, end})
  }
}

function show_rows(store: Explored, kernel: Kernel): void {
  const rows = rows_in(kernel)
  if (store.rows_kept && !same_rows(rows, rows_of(store.selection))) {
    const labels = new Set(Array.from(rows, (row) => store.data.label[row]))
    const text = kernel.get("_about")
    const source = kernel.get("_is_finding") ? "finding" : "explorer"
    store.choose(rows.length == 0 ? null : {source, row: rows.length == 1 ? rows[0] : -1, rows, key: `${text} ${rows.join()}`, labels, text})
  }
}

/** The selected events; of a page that has merged events none can be named. */
function rows_of(selection: Selection | null): Int32Array {
  return selection?.rows ?? new Int32Array(0)
}

function rows_in(kernel: Kernel): Int32Array {
  const {buffer, byteOffset, byteLength} = kernel.get("_rows")
  return new Int32Array(buffer.slice(byteOffset, byteOffset + byteLength) as ArrayBuffer)
}

function bytes_of({buffer, byteOffset, byteLength}: Int32Array): DataView {
  return new DataView(buffer.slice(byteOffset, byteOffset + byteLength))
}

function same_range(a: [number, number], b: [number, number]): boolean {
  return a[0] == b[0] && a[1] == b[1]
}

function same_rows(a: Int32Array, b: Int32Array): boolean {
  return a.length == b.length && a.every((row, i) => row == b[i])
}
