import {TrackOrder, type Store, type TrackInfo} from "./engine"

/** The place of a track in the track area; pixels from its top, before scrolling. */
export type Lane = {
  track: number
  label: string
  /** its name without the heading above it */
  full_label: string
  is_pinned: boolean
  /** whether it stays on top while the others are scrolled */
  is_stuck: boolean
  top: number
  height: number
  depths: number
  row_height: number
  folded: boolean
  foldable: boolean
}

type Heading = {text: string, top: number, is_stuck: boolean}

/** Some lanes, in order and by track. */
export type Lanes = {lanes: Lane[], by_track: Map<number, Lane>}

/** `stuck`: the height of the lanes that stay on top; `parts`: those lanes, and those that scroll under them. */
export type TrackLayout = Lanes & {headings: Heading[], height: number, stuck: number, parts: {stuck: Lanes, scrolled: Lanes}}

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
const PINNED = "Pinned"
/** Share of the room that pinned tracks may keep from the others; those beyond it scroll. */
const MOST_STUCK = 0.6

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

/** Returns the order in which the tracks that have any events stand at first. */
export function first_order({header: {tracks}}: Store, depths: number[], compact: boolean): TrackOrder {
  const order = [...tracks.keys()].filter((track) => depths[track] > 0)
  return new TrackOrder(compact ? order.sort((a, b) => rank_in_compact(tracks[a]) - rank_in_compact(tracks[b])) : order)
}

/** How the tracks are laid out: `room` is the height in which they are seen, compact ones have no headings. */
export type Layout = {depths: number[], folded: Set<number>, order: TrackOrder, compact: boolean, room: number}

/** Returns the tracks from top to bottom, under headings for their common names: the pinned ones, then the others. */
export function layout_tracks(store: Store, {depths, folded, order, compact, room}: Layout): TrackLayout {
  const lanes: Lane[] = []
  const headings: Heading[] = []
  let [top, stuck] = [0, 0]
  const add = (track: number, is_pinned: boolean): void => {
    const info = store.header.tracks[track]
    const text = is_pinned ? PINNED : heading_of(info)
    const size = size_of(depths[track], folded.has(track), compact)
    const has_heading = !compact && headings.at(-1)?.text != text
    const start = top + (has_heading ? HEADING_HEIGHT : 0)
    const end = start + size.height + (compact ? COMPACT_GAP : LANE_GAP)
    const is_stuck = is_pinned && stuck == top && end <= MOST_STUCK * room
    if (has_heading) {
      headings.push({text, top, is_stuck})
    }
    lanes.push({
      track, label: compact || is_pinned ? info.label : label_under(text, info), full_label: info.label, is_pinned, is_stuck,
      top: start, depths: depths[track], row_height: size.height / depths[track], ...size,
    })
    top = end
    stuck = is_stuck ? end : stuck
  }
  order.on_top.forEach((track) => add(track, true))
  order.below.forEach((track) => add(track, false))
  const part = (is_stuck: boolean): Lanes => indexed(lanes.filter((lane) => lane.is_stuck == is_stuck))
  return {
    ...indexed(lanes), headings, height: Math.max(top, ROW_HEIGHT), stuck,
    parts: {stuck: part(true), scrolled: part(false)},
  }
}

function indexed(lanes: Lane[]): Lanes {
  return {lanes, by_track: new Map(lanes.map((lane) => [lane.track, lane]))}
}

/** Returns the height at which a lane's top is drawn where the tracks are scrolled by some pixels. */
export function y_of_lane({top, is_stuck}: Lane, scroll: number): number {
  return is_stuck ? top : top - scroll
}

export type Place = {lane: Lane, depth: number}

/** The lane and nesting level that are drawn at a height, null between lanes. */
export function place_at({parts, stuck}: TrackLayout, y: number, scroll: number): Place | null {
  const at = y < stuck ? y : y + scroll
  const lane = (y < stuck ? parts.stuck : parts.scrolled).lanes.find(({top, height}) => at >= top && at < top + height)
  return lane == null ? null : {lane, depth: Math.min(lane.depths - 1, Math.floor((at - lane.top) / lane.row_height))}
}
