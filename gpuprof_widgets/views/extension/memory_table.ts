import type * as p from "@bokehjs/core/properties"

import {css} from "./colour"
import {format_count, type Column, type MemoryBlock, type Window} from "./engine"
import {memory_colour} from "./memory_paint"
import {lifetime, memory_of, MemoryPlot, select_block, selected_block} from "./memory_plot"
import {Panel} from "./panel"
import {TableView} from "./table"

/** The biggest allocations of the range; each row selects its block. */
export class MemoryTableView extends TableView<MemoryBlock> {
  declare model: MemoryTable

  protected override readonly first_rows = 8

  override connect_signals(): void {
    super.connect_signals()
    this.connect(this.model.plot.properties.device.change, () => this.change_columns())
  }

  protected get title(): string {
    return "Biggest allocations"
  }

  /** Returns the columns, without owners that no block has. */
  protected list_columns(): Column<MemoryBlock>[] {
    const {blocks, categories} = memory_of(this.store)
    const owners: Column<MemoryBlock>[] = [
      {key: "line", label: "Line", unit: "text", is_code: true, value: ({line_name}) => line_name},
      {key: "module", label: "Module", unit: "text", is_code: true, value: ({module_name}) => module_name},
      {key: "op", label: "Op", unit: "text", is_code: true, value: ({op_name}) => op_name},
      {key: "tensor", label: "Tensor", unit: "text", is_code: true, value: ({tensor}) => tensor},
    ]
    return [
      {key: "category", label: "Category", unit: "text", has_swatch: true, value: ({category}) => categories[category]},
      {key: "bytes", label: "Size", unit: "bytes", value: ({bytes}) => bytes},
      {
        key: "start_ns", label: "From", unit: "moment", value: ({start}) => finite_or_null(start),
        text: ({start}) => start == -Infinity ? "before" : null, note: (block) => lifetime(this.store, block),
      },
      {
        key: "alive_ns", label: "Alive", unit: "ns", value: ({start, end}) => finite_or_null(end - start),
        text: ({end}) => end == Infinity ? "to the end" : null, note: (block) => lifetime(this.store, block),
      },
      ...owners.filter(({value}) => blocks.some((block) => value(block) != "")),
    ]
  }

  /** Returns the blocks, the biggest first. */
  protected list_rows(range: Window | null): MemoryBlock[] {
    const {store} = this
    return memory_of(store).living(this.model.plot.device, ...range == null ? store.bounds : store.window!)
  }

  protected override colour_of({category}: MemoryBlock): string {
    return css(memory_colour(memory_of(this.store).categories[category], this.store.theme.palette.background))
  }

  protected summary(count: number): string {
    const {left_out} = memory_of(this.store)
    const smaller = left_out == 0 ? "" : `; ${format_count(left_out, "smaller block")} not listed`
    return `${this.store.window == null ? "whole trace" : "alive in the selected range"}: ${format_count(count, "block")}${smaller}`
  }

  protected override nothing(): string {
    return this.is_filtered ? super.nothing() : "No memory was alive in this range."
  }

  protected key_of({index}: MemoryBlock): string {
    return String(index)
  }

  protected chosen_keys(): Set<string> {
    const block = selected_block(this.store)
    return new Set(block == null || block.device != this.model.plot.device ? [] : [this.key_of(block)])
  }

  protected choose(block: MemoryBlock): void {
    select_block(this.store, block === selected_block(this.store) ? null : block)
  }
}

/** Returns a time, or null where it lies before or after the record. */
function finite_or_null(ns: number): number | null {
  return Number.isFinite(ns) ? ns : null
}

type MemoryTableProps = {plot: p.Property<MemoryPlot>}

export interface MemoryTable extends p.AttrsOf<MemoryTableProps> {}

export class MemoryTable extends Panel {
  static {
    this.prototype.default_view = MemoryTableView
    this.define<MemoryTableProps>(({Ref}) => ({plot: [Ref(MemoryPlot)]}))
  }
}
