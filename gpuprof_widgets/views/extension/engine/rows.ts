/** The columns of the rows, from those that were sent: links, nesting, in as few bytes as they fit into. */

import type {Columns, Links, Numbers, Rows, Times} from "./columns"
import {narrowed} from "./decode"
import type {Header} from "./header"
import {depths, nearest_ancestors, nest} from "./nest"

export const OP_CATEGORIES = ["cpu_op", "user_annotation"]
export const GPU_CATEGORIES = ["kernel", "gpu_memcpy", "gpu_memset"]

export function rows_of(header: Header, columns: Columns): Rows {
  const {rows} = header
  const ts = shifted(columns.get("ts")!, null)
  const end = shifted(ts, columns.get("dur")!)
  const label = narrowed(columns.get("label")!)
  const parent = parents(ts, end, first_rows(header), columns.get("parent"))
  const owner = links(columns.get("owner"), rows)
  return {
    ts, end, label, parent, owner,
    began: columns.has("before") ? shifted(ts, columns.get("before")!, -1) : ts,
    ended: columns.has("after") ? shifted(end, columns.get("after")!) : end,
    depth: narrowed(depths(parent)),
    op: columns.has("op") ? links(columns.get("op"), rows) : ops(header, label, parent, owner),
    forward: links(columns.get("forward"), rows),
    count: narrowed(columns.get("count") ?? new Uint8Array(rows).fill(1)),
    on_gpu: masked(label, category_mask(header, GPU_CATEGORIES)),
    shapes: columns.has("shape") ? narrowed(columns.get("shape")!) : null,
    byte_sizes: columns.get("bytes") ?? null,
    device_byte_sizes: columns.get("device_bytes") ?? null,
    flop_counts: columns.get("flops") ?? null,
  }
}

/** Returns the first row of each track, and at the end the number of rows. */
export function first_rows(header: Header): Uint32Array {
  const first = new Uint32Array(header.tracks.length + 1)
  header.tracks.forEach((track, i) => first[i + 1] = first[i] + track.rows)
  return first
}

/** Returns per label whether its category is one of these. */
export function category_mask({categories, label}: Header, wanted: readonly string[]): Uint8Array {
  const is_wanted = categories.map((category) => wanted.includes(category))
  return Uint8Array.from(label, ([, category]) => Number(is_wanted[category]))
}

/** Returns a mask of rows from a mask of labels. */
export function masked(label: Numbers, mask: Uint8Array): Uint8Array {
  const rows = new Uint8Array(label.length)
  for (let row = 0; row < rows.length; row++) {
    rows[row] = mask[label[row]]
  }
  return rows
}

/** Whether a category is of calls of a device's runtime or driver: CUDA, ROCm, XPU, ... */
export function is_launch_category(category: string): boolean {
  return /_(runtime|driver)$/.test(category)
}

/** Returns moments later by some times, or (-1) earlier; of 32 bits where they fit into these. */
function shifted(moments: Numbers, times: Numbers | null, direction: 1 | -1 = 1): Times {
  const values = new Float64Array(moments)
  let [least, most] = [0, 0]
  for (let row = 0; row < values.length; row++) {
    values[row] += times == null ? 0 : direction*times[row]
    least = Math.min(least, values[row])
    most = Math.max(most, values[row])
  }
  return least >= 0 && most < 2**32 ? new Uint32Array(values) : values
}

function links(column: Numbers | undefined, rows: number): Links {
  return column == null ? new Int8Array(rows).fill(-1) : column instanceof Int32Array ? column : new Int32Array(column)
}

/** Returns the parents: as sent (the distance upwards) where coarse ticks or a window hide them, else by nesting. */
function parents(ts: Times, end: Times, first_row: Uint32Array, distance: Numbers | undefined): Int32Array {
  if (distance != null) {
    return sent_parents(distance)
  }
  const parent = new Int32Array(ts.length)
  for (let track = 0; track + 1 < first_row.length; track++) {
    const [first, last] = [first_row[track], first_row[track + 1]]
    const nested = nest(ts.subarray(first, last), end.subarray(first, last))
    parent.set(nested.map((above) => above < 0 ? -1 : first + above), first)
  }
  return parent
}

function sent_parents(distance: Numbers): Int32Array {
  const parent = new Int32Array(distance.length)
  for (let row = 0; row < parent.length; row++) {
    parent[row] = distance[row] == 0 ? -1 : row - distance[row]
  }
  return parent
}

/** Returns the op of each GPU and launch row: the innermost one around the launch. */
function ops(header: Header, label: Numbers, parent: Int32Array, owner: Links): Links {
  const is_op = masked(label, category_mask(header, OP_CATEGORIES))
  const is_launch = masked(label, category_mask(header, header.categories.filter(is_launch_category)))
  const around = nearest_ancestors(parent, is_op)
  const op = new Int32Array(label.length)
  for (let row = 0; row < op.length; row++) {
    const cause = owner[row]
    op[row] = cause >= 0 ? (is_op[cause] == 1 ? cause : around[cause]) : is_launch[row] == 1 ? around[row] : -1
  }
  return op
}
