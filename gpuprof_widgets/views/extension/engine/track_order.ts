/** Which tracks a timeline shows, and in which order. */

/** The reader's order of the tracks: a value that does not change. Every track is in it once. */
export class TrackOrder {
  constructor(
    /** from top to bottom */
    readonly order: readonly number[],
    private readonly pinned: ReadonlySet<number> = new Set(),
    readonly hidden: ReadonlySet<number> = new Set(),
  ) {}

  /** The tracks that stand on top, in their order. */
  get on_top(): number[] {
    return this.order.filter((track) => this.pinned.has(track) && !this.hidden.has(track))
  }

  /** The tracks under them. */
  get below(): number[] {
    return this.order.filter((track) => !this.pinned.has(track) && !this.hidden.has(track))
  }

  is_pinned(track: number): boolean {
    return this.pinned.has(track)
  }

  /** Pins a track, or takes the pin away: it is then where it was. */
  pin(track: number): TrackOrder {
    const pinned = new Set(this.pinned)
    if (!pinned.delete(track)) {
      pinned.add(track)
    }
    return new TrackOrder(this.order, pinned, this.hidden)
  }

  hide(track: number): TrackOrder {
    return new TrackOrder(this.order, this.pinned, new Set([...this.hidden, track]))
  }

  /** Brings tracks back that were hidden, each to its place; all of them where none is named. */
  show(tracks: Iterable<number> = this.hidden): TrackOrder {
    const shown = new Set(tracks)
    const hidden = [...this.hidden].filter((track) => !shown.has(track))
    return hidden.length == this.hidden.size ? this : new TrackOrder(this.order, this.pinned, new Set(hidden))
  }

  /** The shown tracks among which a track can be moved. */
  peers(track: number): number[] {
    return this.pinned.has(track) ? this.on_top : this.below
  }

  /** Moves a track past the next (1) or previous (-1) of its peers; at the end it stays. */
  move(track: number, by: 1 | -1): TrackOrder {
    const peers = this.peers(track)
    const next = peers.indexOf(track) + by
    return next < 0 || next >= peers.length ? this : this.place(track, by > 0 ? next + 1 : next)
  }

  /** Puts a track before the one at a place among its peers, or after the last of them. */
  place(track: number, at: number): TrackOrder {
    const peers = this.peers(track)
    const from = peers.indexOf(track)
    if (at == from || at == from + 1) {
      return this
    }
    const others = this.order.filter((other) => other != track)
    const before = at < peers.length ? others.indexOf(peers[at]) : others.indexOf(peers[peers.length - 1]) + 1
    return new TrackOrder([...others.slice(0, before), track, ...others.slice(before)], this.pinned, this.hidden)
  }
}
