/** Decodes the payload's text into typed columns: base64, gzip, byte planes, differences. */

import type {ArrayInfo, ColumnInfo, Header, TrackInfo} from "./header"

export type Columns = Map<string, Float64Array>

export async function decode_payload(payload: string): Promise<{header: Header, columns: Columns, arrays: Float64Array[]}> {
  const bytes = await inflate(from_base64(payload))
  const header_length = new DataView(bytes.buffer).getUint32(0, true)
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + header_length))) as Header
  const columns: Columns = new Map()
  let offset = 4 + header_length
  for (const info of header.columns) {
    const size = info.width*header.rows
    const values = join_planes(bytes.subarray(offset, offset + size), header.rows)
    columns.set(info.name, decoders[info.encoding](values, header.tracks))
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
  const values = join_planes(bytes, length)
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

const decoders: Record<ColumnInfo["encoding"], (values: Float64Array, tracks: TrackInfo[]) => Float64Array> = {
  plain: (values) => values,
  delta: sum_differences,
  link: sum_steps,
  signed: (values) => values.map(unfold_sign),
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

async function inflate(bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array<ArrayBuffer>> {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))
  return new Uint8Array(await new Response(stream).arrayBuffer())
}

/** Returns values from their byte planes, as floating point because they may exceed 32 bits. */
function join_planes(bytes: Uint8Array, rows: number): Float64Array {
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
function sum_differences(values: Float64Array, tracks: TrackInfo[]): Float64Array {
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

/** Decodes links to rows: 0 is "none" (-1), else one more than the signed step from the row named last. */
function sum_steps(values: Float64Array): Float64Array {
  let last = 0
  for (let i = 0; i < values.length; i++) {
    if (values[i] == 0) {
      values[i] = -1
    } else {
      last += unfold_sign(values[i] - 1)
      values[i] = last
    }
  }
  return values
}

/** Decodes a signed number: 0, 1, 2, 3, 4, ... stand for 0, -1, 1, -2, 2, ... */
function unfold_sign(value: number): number {
  return value % 2 == 0 ? value/2 : -(value + 1)/2
}
