import {fullest_stretch, type Store} from "./engine"
import {folded_at_first, layout_tracks, place_at, ROW_HEIGHT, track_depths, type Lane, type Place, type TrackLayout} from "./tracks"

/** The room in which the tracks of a timeline are laid out, in pixels. */
type Room = {compact: boolean, max_height: number, folds_to_fit: boolean}

/** The tracks on the screen: which of them are folded, where they lie, and how far they are scrolled. */
export class TrackArea {
  layout: TrackLayout
  private readonly depths: number[]
  private readonly folded: Set<number>
  /** Pixels of the tracks above those that are seen. */
  scroll = 0

  /** `height`: of the part of the tracks that is seen, in pixels; `scrolled` is called when it may be another part. */
  constructor(
    private readonly data: Store, private readonly room: Room, private readonly height: () => number, private readonly scrolled: () => void,
  ) {
    this.depths = track_depths(data)
    this.folded = folded_at_first(data, this.depths, room.compact)
    this.lay_out()
    if (room.folds_to_fit) {
      this.fold_to_fit()
    }
  }

  /** Folds the deepest tracks until all tracks are in view. */
  private fold_to_fit(): void {
    const {depths, room} = this
    const deepest = [...depths.keys()].sort((a, b) => depths[b] - depths[a])
    for (const track of deepest) {
      if (this.layout.height > room.max_height) {
        this.folded.add(track)
        this.lay_out()
      }
    }
  }

  /** Lays out the tracks as they are folded now. */
  lay_out(): void {
    const {data, depths, folded, room: {compact}} = this
    this.layout = layout_tracks(data, {depths, folded, compact})
  }

  /** Folds a track or unfolds it. */
  fold(track: number): void {
    if (!this.folded.delete(track)) {
      this.folded.add(track)
    }
  }

  /** Unfolds some tracks; returns whether any was folded. */
  unfold(tracks: Iterable<number>): boolean {
    return [...tracks].filter((track) => this.folded.delete(track)).length > 0
  }

  /** The lane and nesting level that are seen at a height, null between lanes. */
  place_at(y: number): Place | null {
    return place_at(this.layout, y + this.scroll)
  }

  get scroll_end(): number {
    return Math.max(0, this.layout.height - this.height())
  }

  scroll_to(top: number): void {
    this.scroll = top
    this.stay_within()
    this.scrolled()
  }

  /** Scrolls back to where there are tracks, if they have become fewer or their room larger. */
  stay_within(): void {
    this.scroll = Math.max(0, Math.min(this.scroll, this.scroll_end))
  }

  /** Scrolls until a stretch of the tracks is in view. */
  scroll_into_view(top: number, height: number): void {
    const room = this.height()
    if (top < this.scroll) {
      this.scroll_to(top)
    } else if (top + height > this.scroll + room) {
      this.scroll_to(top + height - room)
    }
  }

  /** Scrolls to the level of an event. */
  scroll_to_event(row: number): void {
    this.scroll_into_view(this.top_of(row), this.lane_of(row).row_height)
  }

  /** The lane that an event lies on. */
  private lane_of(row: number): Lane {
    return this.layout.by_track.get(this.data.track[row])!
  }

  private top_of(row: number): number {
    const {top, row_height} = this.lane_of(row)
    return top + this.data.depth[row] * row_height
  }

  /** Scrolls until most of some events are in the middle. Returns where they are then seen; the whole area for none. */
  centre(rows: number[]): {top: number, bottom: number} {
    const height = this.height()
    if (rows.length == 0) {
      return {top: 0, bottom: height}
    }
    const tops = Float64Array.from(rows, (row) => this.top_of(row)).sort()
    const [first, last] = fullest_stretch(tops, height - ROW_HEIGHT)
    this.scroll_to((first + last + ROW_HEIGHT - height) / 2)
    return {top: first - this.scroll, bottom: last + ROW_HEIGHT - this.scroll}
  }
}
