import type {Store, TrackInfo} from "./engine"

/** The place of a track in the track area; pixels from its top, before scrolling. */
export type Lane = {
  track: number
  label: string
  /** its name without the heading above it */
  full_label: string
  top: number
  height: number
  depths: number
  row_height: number
  folded: boolean
  foldable: boolean
}

export type TrackLayout = {lanes: Lane[], by_track: Map<number, Lane>, headings: {text: string, top: number}[], height: number}

export const ROW_HEIGHT = 17
const HEADING_HEIGHT = 20
const LANE_GAP = 5
const FOLDED_HEIGHT = 34
/** Height of a folded track where several timelines stand under each other. */
const COMPACT_HEIGHT = 20
const COMPACT_GAP = 2
/** Tracks deeper than this start folded: a Python stack of 60 frames would push the GPU off the screen. */
const DEEP = 9
/** Ops lie within cell lines and modules; tracks of this depth leave the GPU on the screen. */
const DEEP_OPS = 20
/** Heading of the worker processes, which share one job. */
const WORKERS = "DataLoader workers"

/** Number of nesting levels of every track. */
export function track_depths(store: Store): number[] {
  return store.header.tracks.map((_, track) => store.levels(track))
}

/** Returns the tracks that are folded at first; a single track pushes no other off the screen. */
export function folded_at_first({header: {tracks}}: Store, depths: number[], compact: boolean): Set<number> {
  const most = tracks.map(({kind}) => compact ? 0 : tracks.length == 1 ? Infinity : kind == "cpu" ? DEEP_OPS : DEEP)
  return new Set(depths.flatMap((depth, track) => depth > most[track] ? [track] : []))
}

/** The process under which Kineto puts what the recording did. */
const RECORDING = "-1"

function heading_of(track: TrackInfo): string {
  if (track.device >= 0) {
    return `GPU ${track.device}`
  }
  if (track.kind == "worker") {
    return WORKERS
  }
  if (track.process == RECORDING) {
    return "Recording itself"
  }
  return track.kind == "other" ? "Other" : `CPU · process ${track.process}`
}

/** Returns the label of a lane without the words of its heading. */
function label_under(heading: string, {label}: TrackInfo): string {
  return heading == WORKERS ? label.replace("DataLoader ", "") : label.replace(`${heading} · `, "")
}

/** Height of a track, and whether it is drawn low. */
function size_of(depths: number, is_folded: boolean, compact: boolean): {height: number, folded: boolean, foldable: boolean} {
  const foldable = depths > (compact ? 1 : 2)
  const folded = is_folded && foldable
  const most = folded ? compact ? COMPACT_HEIGHT : FOLDED_HEIGHT : Infinity
  return {height: Math.min(most, depths * ROW_HEIGHT), folded, foldable}
}

/** Returns the place of a track where there is little room: the GPU first, then the thread that launches its work. */
function rank_in_compact({device, kind}: TrackInfo): number {
  return device >= 0 ? 0 : kind == "cpu" ? 1 : 2
}

/** How the tracks are laid out: compact ones have no headings. */
export type Layout = {depths: number[], folded: Set<number>, compact: boolean}

/** Returns the tracks that have any events from top to bottom, under headings for their common names. */
export function layout_tracks({header: {tracks}}: Store, {depths, folded, compact}: Layout): TrackLayout {
  const lanes: Lane[] = []
  const headings: TrackLayout["headings"] = []
  const order = [...tracks.keys()].filter((track) => depths[track] > 0)
  let top = 0
  for (const track of compact ? order.sort((a, b) => rank_in_compact(tracks[a]) - rank_in_compact(tracks[b])) : order) {
    const text = heading_of(tracks[track])
    const size = size_of(depths[track], folded.has(track), compact)
    if (!compact && headings.at(-1)?.text != text) {
      headings.push({text, top})
      top += HEADING_HEIGHT
    }
    const {label} = tracks[track]
    lanes.push({
      track, label: compact ? label : label_under(text, tracks[track]), full_label: label,
      top, depths: depths[track], row_height: size.height / depths[track], ...size,
    })
    top += size.height + (compact ? COMPACT_GAP : LANE_GAP)
  }
  return {lanes, by_track: new Map(lanes.map((lane) => [lane.track, lane])), headings, height: Math.max(top, ROW_HEIGHT)}
}

export type Place = {lane: Lane, depth: number}

/** The lane and nesting level at a height, null between lanes. */
export function place_at({lanes}: TrackLayout, y: number): Place | null {
  const lane = lanes.find(({top, height}) => y >= top && y < top + height)
  return lane == null ? null : {lane, depth: Math.min(lane.depths - 1, Math.floor((y - lane.top) / lane.row_height))}
}
