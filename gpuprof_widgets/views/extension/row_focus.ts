/** The rows of a table that can be selected: the Tab key reaches one of them, and from there keys lead to the others. */
export class RowFocus {
  /** Key of the row that the Tab key reaches. */
  private current: string | null = null

  constructor(private readonly table: HTMLTableElement, private readonly root: ShadowRoot) {}

  get lines(): HTMLTableRowElement[] {
    return [...this.table.querySelectorAll<HTMLTableRowElement>("tr[data-key]")]
  }

  /** The row, or the heading, that has the focus. */
  get focused(): HTMLElement | null {
    const {activeElement} = this.root
    return activeElement instanceof HTMLElement && this.table.contains(activeElement) ? activeElement : null
  }

  /** The focus stays on a row or heading, though it is drawn anew. */
  restore(focused: HTMLElement | null): void {
    const {head} = focused?.dataset ?? {}
    if (head != null) {
      this.table.querySelector<HTMLElement>(`[data-head="${head}"]`)?.focus({preventScroll: true})
    } else if (focused != null) {
      this.lines.find(({dataset}) => dataset.key == this.current)?.focus({preventScroll: true})
    }
  }

  /** The Tab key reaches another row; null: the first. */
  set(key: string | null): void {
    this.current = key
  }

  /** Marks the rows that hold the selection. Tab reaches the first of them, unless another row has the focus. */
  mark(chosen: Set<string>): void {
    const {lines} = this
    const is_there = lines.some(({dataset}) => dataset.key == this.current)
    if (!is_there || this.focused == null) {
      const line = lines.find(({dataset}) => chosen.has(dataset.key!)) ?? (is_there ? null : lines[0])
      this.current = line?.dataset.key ?? (is_there ? this.current : null)
    }
    for (const line of lines) {
      line.setAttribute("aria-selected", String(chosen.has(line.dataset.key!)))
      line.tabIndex = line.dataset.key == this.current ? 0 : -1
    }
  }

  /** Moves the focus from a row to another; returns false for other keys. */
  move(line: HTMLTableRowElement, key: string): boolean {
    const {lines} = this
    const at = lines.indexOf(line)
    const to = {ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: lines.length - 1}[key]
    if (to == null) {
      return false
    }
    const next = lines[Math.max(0, Math.min(to, lines.length - 1))]
    line.tabIndex = -1
    next.tabIndex = 0
    next.focus()
    this.current = next.dataset.key!
    return true
  }
}
