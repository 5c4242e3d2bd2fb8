/** The columns of a record by row, as types. */

/** Numbers in as few bytes as they fit into. */
export type Numbers = Uint8Array | Uint16Array | Uint32Array | Int32Array | Float64Array
/** Moments in ticks. */
export type Times = Uint32Array | Float64Array
/** Rows, -1 for none; of one byte where no row has a link. */
export type Links = Int32Array | Int8Array

/** Columns as they were sent, by name. */
export type Columns = Map<string, Numbers>

/** A time range [start, end) in ticks. One that reaches the end of the record is closed there. */
export type Window = {start: number, end: number}

/** Start and end of each row, and the first row of each track and at the end the number of rows. */
export type Slices = {ts: Times, end: Times, first_row: Uint32Array}

/** What is known of the rows. */
export type Rows = {
  /** start and end of each row, in ticks since the trace's start */
  readonly ts: Times
  readonly end: Times
  /** start and end in ticks before a window cut the row: at its edge the order of the starts is lost */
  readonly began: Times
  readonly ended: Times
  /** index into `header.label` */
  readonly label: Numbers
  /** row of the latest slice of the track that is still open when this one starts, -1 for none */
  readonly parent: Int32Array
  readonly depth: Numbers
  /** GPU rows: row of the launch, or of the op where the record has no launch, else -1 */
  readonly owner: Links
  /** GPU and launch rows: row of the innermost op or annotation that they belong to, else -1 */
  readonly op: Links
  /** backward ops: row of the forward op, else -1 */
  readonly forward: Links
  /** events that a row stands for; 0 for owners kept from outside of a window */
  readonly count: Numbers
  /** 1 for kernels, copies and memsets */
  readonly on_gpu: Uint8Array
  /** index into `header.shapes`, one more than it; null where no row has shapes, as the numbers below */
  readonly shapes: Numbers | null
  readonly byte_sizes: Numbers | null
  readonly device_byte_sizes: Numbers | null
  readonly flop_counts: Numbers | null
}
