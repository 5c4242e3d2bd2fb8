import {fitted, WIDEST_SHARE, widths_of, type Column, type Measure, type Width} from "./engine"

/** Gives the columns of a table their widths: by what is in them, and by the room that there is. */
export class ColumnWidths<Row> {
  private columns: Column<Row>[] = []
  private rows: Row[] = []
  /** What the columns need; null until it can be measured. */
  private needed: Width[] | null = null
  /** Pixels of the frame's width: to ask for it after each change would have the browser lay out the page each time. */
  private room = 0
  private readonly observer = new ResizeObserver(() => {
    this.room = this.frame.clientWidth
    this.lay_out()
  })

  constructor(private readonly table: HTMLTableElement, private readonly frame: HTMLElement) {
    this.observer.observe(frame)
  }

  remove(): void {
    this.observer.disconnect()
  }

  /** The columns are others from now on; `rows`: all that may be in them. */
  change(columns: Column<Row>[], rows: Row[]): void {
    this.columns = columns
    this.rows = rows
    this.needed = null
  }

  /** Fits the columns into the room, once there is any. */
  lay_out(): void {
    if (this.room > 0) {
      this.needed ??= this.measured()
      const widths = fitted(this.needed, this.room)
      this.table.style.width = `${widths.reduce((sum, width) => sum + width, 0)}px`
      this.table.querySelectorAll("col").forEach((col, at) => { col.style.width = `${widths[at]}px` })
    }
  }

  private measured(): Width[] {
    const measure = measure_in(this.table)
    this.table.style.setProperty("--share", `${measure(WIDEST_SHARE, "text")}px`)
    return widths_of(this.columns, this.rows, measure)
  }
}

/** Returns a function that measures texts in the fonts of a table on the page. */
function measure_in(table: HTMLElement): Measure {
  const style = getComputedStyle(table)
  const ctx = document.createElement("canvas").getContext("2d")!
  const page = `${style.fontSize} ${style.fontFamily}`
  const fonts = {text: page, heading: `600 ${page}`, code: `12px ${style.getPropertyValue("--mono")}`}
  return (text, font) => {
    ctx.font = fonts[font]
    return ctx.measureText(text).width
  }
}
