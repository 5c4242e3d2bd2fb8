import {fullest_stretch, type Store} from "./engine"
import {folded_at_first, layout_tracks, place_at, ROW_HEIGHT, type Lane, type Layout, type Place, type TrackLayout} from "./tracks"

/** The tracks of a timeline, and the room in which they are laid out, in pixels. */
type Tracks = Pick<Layout, "depths" | "order" | "compact"> & {max_height: number, folds_to_fit: boolean}

/** The tracks on the screen: which of them are folded, where they lie, and how far they are scrolled. */
export class TrackArea {
  layout: TrackLayout
  private readonly folded: Set<number>
  /** Pixels of the tracks above those that are seen. */
  scroll = 0

  /** `height`: of the part of the tracks that is seen, in pixels; `scrolled` is called when it may be another part. */
  constructor(
    private readonly data: Store, private readonly tracks: Tracks,
    private readonly height: () => number, private readonly scrolled: () => void,
  ) {
    this.folded = folded_at_first(data, tracks.depths, tracks.compact)
    if (tracks.folds_to_fit) {
      this.fold_to_fit()
    }
  }

  /** Folds the deepest tracks until all tracks are in view. */
  private fold_to_fit(): void {
    const {depths, max_height} = this.tracks
    const deepest = [...depths.keys()].sort((a, b) => depths[b] - depths[a])
    for (const track of deepest) {
      if (this.laid_out().height > max_height) {
        this.folded.add(track)
      }
    }
  }

  private laid_out(): TrackLayout {
    const {depths, order, compact, max_height: room} = this.tracks
    return layout_tracks(this.data, {depths, folded: this.folded, order, compact, room})
  }

  /** Lays out the tracks as they are arranged and folded now. */
  lay_out(): void {
    this.layout = this.laid_out()
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

  lane_of(track: number): Lane | undefined {
    return this.layout.by_track.get(track)
  }

  /** The lane and nesting level that are seen at a height, null between lanes. */
  place_at(y: number): Place | null {
    return place_at(this.layout, y, this.scroll)
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

  /** Scrolls until a stretch of a lane is in view, below the tracks that stay on top. */
  scroll_into_view(lane: Lane, top: number, height: number): void {
    const {layout: {stuck}} = this
    const room = this.height()
    if (lane.is_stuck) {
      this.scrolled()
    } else if (top < this.scroll + stuck) {
      this.scroll_to(top - stuck)
    } else if (top + height > this.scroll + room) {
      this.scroll_to(top + height - room)
    }
  }

  /** Scrolls to the level of an event. */
  scroll_to_event(row: number): void {
    const {data} = this
    const lane = this.lane_of(data.track[row])
    if (lane != null) {
      this.scroll_into_view(lane, lane.top + data.depth[row] * lane.row_height, lane.row_height)
    }
  }

  /** Scrolls until most of some events are in the middle. Returns where they are then seen; the whole area if all of them stay on top. */
  centre(rows: number[]): {top: number, bottom: number} {
    const {data, layout: {stuck}} = this
    const height = this.height()
    const tops = rows.flatMap((row) => {
      const lane = this.lane_of(data.track[row])
      return lane == null || lane.is_stuck ? [] : [lane.top + data.depth[row] * lane.row_height]
    })
    if (tops.length == 0) {
      return {top: 0, bottom: height}
    }
    const [first, last] = fullest_stretch(Float64Array.from(tops).sort(), height - stuck - ROW_HEIGHT)
    this.scroll_to((first + last + ROW_HEIGHT - height - stuck) / 2)
    return {top: first - this.scroll, bottom: last + ROW_HEIGHT - this.scroll}
  }
}
