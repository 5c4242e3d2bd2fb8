import type {Store, TrackInfo} from "./engine"

/** Where a track stands in the track area; pixels from its top, before scrolling. */
export type Lane = {
  track: number
  label: string
  top: number
  height: number
  depths: number
  row_height: number
  folded: boolean
  foldable: boolean
}

export type Heading = {text: string, top: number}

export type TrackLayout = {lanes: Lane[], headings: Heading[], height: number, by_track: Map<number, Lane>}

export const ROW_HEIGHT = 17
const HEADING_HEIGHT = 20
const LANE_GAP = 5
const FOLDED_HEIGHT = 34
/** Of a track in one of many timelines under each other. */
const COMPACT_HEIGHT = 20
const COMPACT_GAP = 2
/** Tracks deeper than this start folded: a Python stack of 60 frames would push the GPU off the screen. */
const DEEP = 9
/** Ops lie within cell lines and modules: so deep, and the GPU is still on the screen. */
const DEEP_OPS = 20
/** Each is a process of its own, but they do one job. */
const WORKERS = "DataLoader workers"

/** Number of nesting levels of every track. */
export function track_depths(store: Store): number[] {
  return store.header.tracks.map((_, track) => store.levels(track))
}

/** A track that is alone pushes no other off the screen. */
export function folded_at_first({header: {tracks}}: Store, depths: number[], compact: boolean): Set<number> {
  const most = tracks.map(({kind}) => compact ? 0 : tracks.length == 1 ? Infinity : kind == "cpu" ? DEEP_OPS : DEEP)
  return new Set(depths.flatMap((depth, track) => depth > most[track] ? [track] : []))
}

function heading_of(track: TrackInfo): string {
  if (track.device >= 0) {
    return `GPU ${track.device}`
  }
  if (track.kind == "worker") {
    return WORKERS
  }
  return track.kind == "other" ? "Other" : `CPU · process ${track.process}`
}

/** What a lane is called under its heading, which has said the rest. */
function label_under(heading: string, {label}: TrackInfo): string {
  return heading == WORKERS ? label.replace("DataLoader ", "") : label.replace(`${heading} · `, "")
}

function lane_of(track: number, label: string, top: number, depths: number, folded: boolean, compact: boolean): Lane {
  const foldable = depths > (compact ? 1 : 2)
  const folded_height = compact ? COMPACT_HEIGHT : FOLDED_HEIGHT
  const height = folded && foldable ? Math.min(folded_height, depths * ROW_HEIGHT) : depths * ROW_HEIGHT
  return {track, label, top, height, depths, row_height: height / depths, folded: folded && foldable, foldable}
}

/** Where there is little room the GPU comes first, and of the threads the one that launches its work. */
function rank_in_compact({device, kind}: TrackInfo): number {
  return device >= 0 ? 0 : kind == "cpu" ? 1 : 2
}

/** Tracks from top to bottom, with what they have in common as headings; compact ones stand without those. */
export function layout_tracks(store: Store, depths: number[], folded: Set<number>, compact: boolean): TrackLayout {
  const lanes: Lane[] = []
  const headings: Heading[] = []
  let top = 0
  const order = store.header.tracks.map((info, track) => ({info, track}))
  if (compact) {
    order.sort((a, b) => rank_in_compact(a.info) - rank_in_compact(b.info))
  }
  order.forEach(({info, track}) => {
    if (depths[track] == 0) {
      return
    }
    const text = heading_of(info)
    if (!compact && headings.at(-1)?.text != text) {
      headings.push({text, top})
      top += HEADING_HEIGHT
    }
    const label = compact ? info.label : label_under(text, info)
    const lane = lane_of(track, label, top, depths[track], folded.has(track), compact)
    lanes.push(lane)
    top += lane.height + (compact ? COMPACT_GAP : LANE_GAP)
  })
  return {lanes, headings, height: Math.max(top, ROW_HEIGHT), by_track: new Map(lanes.map((lane) => [lane.track, lane]))}
}

export type Place = {lane: Lane, depth: number}

/** The lane and nesting level at a height, null between lanes. */
export function place_at(layout: TrackLayout, y: number): Place | null {
  const lane = layout.lanes.find(({top, height}) => y >= top && y < top + height)
  return lane == null ? null : {lane, depth: Math.min(lane.depths - 1, Math.floor((y - lane.top) / lane.row_height))}
}
