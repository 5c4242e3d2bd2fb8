import type * as p from "@bokehjs/core/properties"

import {button, element} from "./element"
import {format_bytes, format_count} from "./engine"
import type {Memory, MemoryBlock} from "./engine"
import {memory_colour} from "./memory_colours"
import {MemoryPlot} from "./memory_plot"
import {lifetime, memory_of, select_block, selected_block} from "./memory_select"
import {MEMORY_TABLE_CSS} from "./memory_styles"
import {Panel, PanelView} from "./panel"

const FIRST_ROWS = 8
const MOST_ROWS = 200

type Column = {heading: string, width: string, css: string, text: (block: MemoryBlock) => string}

/** The biggest allocations of the range; each row selects its block. */
export class MemoryTableView extends PanelView {
  declare model: MemoryTable

  protected readonly css = MEMORY_TABLE_CSS
  private memory: Memory
  private columns: Column[]
  private show_all = false
  private focused = -1
  private table: HTMLTableElement
  private status: HTMLElement
  private more: HTMLButtonElement

  override connect_signals(): void {
    super.connect_signals()
    const {store, model} = this
    const fill = (): void => this.fill()
    this.connect(store.properties.window.change, fill)
    this.connect(store.selection_changed, fill)
    this.connect(store.theme.changed, fill)
    this.connect(model.plot.properties.device.change, fill)
  }

  protected build_content(): Node[] {
    this.memory = memory_of(this.store)
    this.columns = this.columns_with_content()
    this.table = element("table", {"aria-label": "Biggest allocations"})
    this.table.addEventListener("keydown", (event) => this.key(event))
    this.status = element("span", {class: "muted"})
    this.more = button("", {class: "more"}, () => {
      this.show_all = !this.show_all
      this.fill()
    })
    this.fill()
    return [
      element("div", {class: "row"}, element("h3", {}, "Biggest allocations"), this.status),
      element("div", {class: "frame"}, this.table), this.more,
    ]
  }

  /** Owners that no block has are no column. */
  private columns_with_content(): Column[] {
    const {blocks, categories} = this.memory
    const owners: Column[] = [
      {heading: "Line", width: "22%", css: "code", text: (block) => block.line_name},
      {heading: "Module", width: "16%", css: "code", text: (block) => block.module_name},
      {heading: "Op", width: "18%", css: "code", text: (block) => block.op_name},
      {heading: "Tensor", width: "16%", css: "code", text: (block) => block.tensor},
    ]
    return [
      {heading: "Size", width: "92px", css: "number", text: (block) => format_bytes(block.bytes)},
      {heading: "For", width: "150px", css: "", text: (block) => categories[block.category]},
      {heading: "Alive", width: "190px", css: "", text: lifetime},
      ...owners.filter(({text}) => blocks.some((block) => text(block) != "")),
    ]
  }

  private fill(): void {
    const {store} = this
    const [start, end] = store.window ?? store.bounds
    const blocks = this.memory.living(this.model.plot.device, start, end)
    const chosen = selected_block(store)
    const listed = blocks.slice(0, this.show_all ? MOST_ROWS : FIRST_ROWS)
    const is_listed = chosen == null || chosen.device != this.model.plot.device || listed.includes(chosen)
    // A view below, in which it was selected, must not move.
    const shown = is_listed || store.selection?.source == "panel" ? listed : [...listed, chosen]
    const had_focus = this.table.contains(this.shadow_el.activeElement)
    this.focused = (shown.find(({index}) => index == this.focused) ?? chosen ?? shown[0])?.index ?? -1
    this.table.replaceChildren(this.head(), this.body(shown, chosen))
    const smaller = this.memory.left_out == 0 ? "" : `; ${format_count(this.memory.left_out, "smaller block")} not listed`
    this.status.textContent = `${store.window == null ? "whole trace" : "alive in the selected range"}: ${format_count(blocks.length, "block")}${smaller}`
    this.more.hidden = blocks.length <= FIRST_ROWS
    this.more.textContent = this.show_all ? `Show the first ${FIRST_ROWS}` : `Show ${Math.min(blocks.length, MOST_ROWS)} blocks`
    if (had_focus) {
      this.table.querySelector<HTMLElement>("tr[tabindex='0']")?.focus({preventScroll: true})
    }
  }

  private head(): HTMLElement {
    const heads = this.columns.map(({heading, width, css}) =>
      element("th", {scope: "col", style: `width:${width}`, class: css == "number" ? "number" : null}, heading))
    return element("thead", {}, element("tr", {}, ...heads))
  }

  private body(blocks: MemoryBlock[], chosen: MemoryBlock | null): HTMLElement {
    if (blocks.length == 0) {
      const none = element("td", {colspan: this.columns.length, class: "muted"}, "No memory lived in this range.")
      return element("tbody", {}, element("tr", {}, none))
    }
    return element("tbody", {}, ...blocks.map((block) => this.line(block, block === chosen)))
  }

  private line(block: MemoryBlock, selected: boolean): HTMLTableRowElement {
    const {background} = this.store.theme.palette
    const colour = memory_colour(this.memory.categories[block.category], background)
    const cells = this.columns.map(({heading, css, text}) => {
      const words = text(block)
      const swatch = heading == "For" ? [element("span", {class: "swatch", style: `background:${colour}`})] : []
      return element("td", {class: css == "" ? null : css, title: words == "" ? null : words}, ...swatch, words)
    })
    const line = element("tr", {
      "tabindex": block.index == this.focused ? 0 : -1, "aria-selected": String(selected), "data-block": block.index,
    }, ...cells)
    line.addEventListener("click", () => {
      this.focused = block.index
      select_block(this.store, selected ? null : block)
    })
    return line
  }

  private key(event: KeyboardEvent): void {
    const line = event.target instanceof HTMLTableRowElement ? event.target : null
    if (line == null) {
      return
    }
    const lines = [...line.parentElement!.children] as HTMLTableRowElement[]
    const to = {ArrowDown: lines.indexOf(line) + 1, ArrowUp: lines.indexOf(line) - 1, Home: 0, End: lines.length - 1}[event.key]
    if (to != null) {
      const next = lines[Math.max(0, Math.min(to, lines.length - 1))]
      line.tabIndex = -1
      next.tabIndex = 0
      next.focus()
      this.focused = Number(next.dataset.block)
    } else if (event.key == "Enter" || event.key == " ") {
      line.click()
    } else {
      return
    }
    event.preventDefault()
    event.stopPropagation()
  }
}

export class MemoryTable extends Panel {
  declare properties: MemoryTable.Props
  declare __view_type__: MemoryTableView

  static override __module__ = "gpuprof_widgets.views.models"

  static {
    this.prototype.default_view = MemoryTableView
    this.define<MemoryTable.Props>(({Ref}) => ({
      plot: [Ref(MemoryPlot)],
    }))
  }
}

export namespace MemoryTable {
  export type Attrs = p.AttrsOf<Props>
  export type Props = Panel.Props & {plot: p.Property<MemoryPlot>}
}

export interface MemoryTable extends MemoryTable.Attrs {}
