/** Decodes the payload's text into typed columns: base64, gzip, byte planes, differences. */

import type {Columns, Numbers} from "./columns"
import type {ArrayInfo, ColumnInfo, Header, TrackInfo} from "./header"
import {check_header} from "./header_check"
import {DamagedData} from "./shapes"

type Decoded = {header: Header, columns: Columns, arrays: Float64Array[]}

/** Returns the bytes that a payload's text stands for. */
export function unpack(payload: string): Promise<Uint8Array<ArrayBuffer>> {
  return inflate(from_base64(payload))
}

/** Returns the header as it was sent: `decode` checks it. */
export function decode_header(bytes: Uint8Array<ArrayBuffer>): Header {
  return JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + header_length(bytes)))) as Header
}

function header_length(bytes: Uint8Array<ArrayBuffer>): number {
  return new DataView(bytes.buffer).getUint32(0, true)
}

/** Throws a `DamagedData` where the header does not fit the bytes behind it. */
export function decode(bytes: Uint8Array<ArrayBuffer>): Decoded {
  const header = decode_header(bytes)
  check_header(header, bytes.length - 4 - header_length(bytes))
  const columns: Columns = new Map()
  let offset = 4 + header_length(bytes)
  for (const info of header.columns) {
    const size = info.width*header.rows
    const values = join_planes(bytes.subarray(offset, offset + size), header.rows)
    columns.set(info.name, decoders[info.encoding](values, header))
    offset += size
  }
  const arrays = header.arrays.map((info) => {
    const size = info.width*info.length
    offset += size
    return array_of(info, bytes.slice(offset - size, offset))
  })
  return {header, columns, arrays}
}

function array_of({length, encoding}: ArrayInfo, bytes: Uint8Array<ArrayBuffer>): Float64Array {
  if (encoding == "float") {
    return new Float64Array(bytes.buffer)
  }
  const values = Float64Array.from(join_planes(bytes, length))
  if (encoding == "plain") {
    return values
  }
  let last = 0
  return values.map((value) => {
    const unfolded = unfold_sign(value)
    last = encoding == "steps" ? last + unfolded : unfolded
    return last
  })
}

const decoders: Record<ColumnInfo["encoding"], (values: Uint32Array | Float64Array, header: Header) => Numbers> = {
  plain: (values) => values,
  delta: sum_differences,
  link: sum_steps,
  signed: unfold_signs,
}

function from_base64(text: string): Uint8Array<ArrayBuffer> {
  const native = (Uint8Array as {fromBase64?: (text: string) => Uint8Array<ArrayBuffer>}).fromBase64
  if (native != null) {
    return native.call(Uint8Array, text)
  }
  const binary = atob(text)
  const bytes = new Uint8Array(binary.length)
  for (let i = 0; i < binary.length; i++) {
    bytes[i] = binary.charCodeAt(i)
  }
  return bytes
}

/** The most that a payload may unpack to: a few bytes of gzip can stand for any amount of memory. */
const MOST_BYTES = 2 ** 29

async function inflate(bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array<ArrayBuffer>> {
  const reader = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")).getReader()
  const parts: Uint8Array<ArrayBuffer>[] = []
  let count = 0
  for (let {done, value} = await reader.read(); !done; ({done, value} = await reader.read())) {
    count += value!.length
    if (count > MOST_BYTES) {
      await reader.cancel()
      throw new DamagedData({wanted: `of at most ${MOST_BYTES} bytes`, place: ""})
    }
    parts.push(value!)
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer())
}

/** Returns values from their byte planes: of 32 bits where they fit into these. */
function join_planes(bytes: Uint8Array, rows: number): Uint32Array | Float64Array {
  if (bytes.length > 4*rows) {
    return join_wide_planes(bytes, rows)
  }
  const values = new Uint32Array(rows)
  for (let start = 0, bits = 0; start < bytes.length; start += rows, bits += 8) {
    for (let i = 0; i < rows; i++) {
      values[i] |= bytes[start + i] << bits
    }
  }
  return values
}

function join_wide_planes(bytes: Uint8Array, rows: number): Float64Array {
  const values = new Float64Array(rows)
  let unit = 1
  for (let start = 0; start < bytes.length; start += rows) {
    for (let i = 0; i < rows; i++) {
      values[i] += bytes[start + i]*unit
    }
    unit *= 256
  }
  return values
}

/** Decodes differences: each value is stored as that to the one before it on its track, the first as it is. */
function sum_differences(differences: Uint32Array | Float64Array, {tracks}: Header): Numbers {
  const fits = run_totals(differences, tracks).every((total) => total < 2**32)
  const values = fits == differences instanceof Uint32Array ? differences : new (fits ? Uint32Array : Float64Array)(differences)
  let row = 0
  for (const track of tracks) {
    let sum = 0
    for (const end = row + track.rows; row < end; row++) {
      sum += values[row]
      values[row] = sum
    }
  }
  return values
}

/** Returns the sum of the values of each track. */
function run_totals(values: Uint32Array | Float64Array, tracks: TrackInfo[]): number[] {
  let row = 0
  return tracks.map(({rows}) => {
    let sum = 0
    for (const end = row + rows; row < end; row++) {
      sum += values[row]
    }
    return sum
  })
}

/** Decodes links to rows: 0 is "none" (-1), else one more than the signed step from the row named last. */
function sum_steps(steps: Uint32Array | Float64Array): Int32Array {
  const links = new Int32Array(steps.length)
  let last = 0
  for (let i = 0; i < steps.length; i++) {
    if (steps[i] == 0) {
      links[i] = -1
    } else {
      last += unfold_sign(steps[i] - 1)
      links[i] = last
    }
  }
  return links
}

function unfold_signs(folded: Uint32Array | Float64Array): Numbers {
  const values = new Float64Array(folded.length)
  let is_small = true
  for (let i = 0; i < folded.length; i++) {
    values[i] = unfold_sign(folded[i])
    is_small &&= (values[i] | 0) == values[i]
  }
  return is_small ? new Int32Array(values) : values
}

/** Decodes a signed number: 0, 1, 2, 3, 4, ... stand for 0, -1, 1, -2, 2, ... */
function unfold_sign(value: number): number {
  return value % 2 == 0 ? value/2 : -(value + 1)/2
}

/** Returns values from 0 on in as few bytes as they fit into. */
export function narrowed(values: Numbers): Numbers {
  let largest = 0
  for (let i = 0; i < values.length; i++) {
    largest = Math.max(largest, values[i])
  }
  const type = largest < 2**8 ? Uint8Array : largest < 2**16 ? Uint16Array : largest < 2**32 ? Uint32Array : Float64Array
  return values instanceof type ? values : new type(values)
}
