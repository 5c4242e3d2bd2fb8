import type * as p from "@bokehjs/core/properties"

import {css} from "./colour"
import {button, choice, element, legend, legend_items} from "./element"
import {format_bytes, format_share, type Memory, type MemoryDevice} from "./engine"
import {memory_colour} from "./memory_paint"
import {go_to_peak, memory_of, MemoryPlot} from "./memory_plot"
import {BAR_CSS, Panel, PanelView} from "./panel"

/** Title, device, peak and legend of the memory view. */
export class MemoryBarView extends PanelView {
  declare model: MemoryBar

  protected readonly css = BAR_CSS
  private memory: Memory
  private legend: HTMLUListElement
  private peak: HTMLElement
  private from_zero: HTMLButtonElement

  override connect_signals(): void {
    super.connect_signals()
    const {plot} = this.model
    this.connect(plot.properties.device.change, () => this.update())
    this.connect(plot.properties.from_zero.change, () => this.update())
    this.connect(this.store.theme.changed, () => this.update())
  }

  protected build_content(): Node[] {
    this.memory = memory_of(this.store)
    const {plot} = this.model
    const devices = this.memory.devices.map(({name}, i): [string, string] => [String(i), name])
    const device = devices.length < 2 ? []
      : [choice("Device", devices, String(plot.device), (value) => { plot.device = Number(value) })]
    this.from_zero = button("From zero", {title: "Start the axis at zero, or fit it to the memory in view"}, () => {
      plot.from_zero = !plot.from_zero
    })
    this.peak = element("span", {role: "status", "aria-label": "Peak memory"})
    this.legend = legend("Colours of the memory", [])
    this.update()
    const tools = element("div", {class: "row push"}, ...device, this.from_zero,
      button("Go to the peak", {title: "Select the biggest block that was alive at the peak"}, () => go_to_peak(this.store, plot.device)))
    return [
      element("div", {class: "row"}, element("h3", {}, "Memory"), this.peak, tools),
      this.legend,
    ]
  }

  private update(): void {
    const {plot} = this.model
    this.from_zero.setAttribute("aria-pressed", String(plot.from_zero))
    this.show_peak()
    this.show_legend(this.memory.devices[plot.device])
  }

  private show_peak(): void {
    const device = this.memory.devices[this.model.plot.device]
    const moment = device.fullest(...this.store.bounds)
    const stack = [...device.stack(moment)]
    const total = device.totals[moment] ?? 0
    const largest = stack.map((bytes, i): [number, number] => [bytes, i]).filter(([bytes]) => bytes > 0)
      .sort(([a], [b]) => b - a).slice(0, 3)
    const parts = largest.map(([bytes, i]) => `${format_share(bytes / total)} ${this.memory.categories[i]}`)
    this.peak.textContent = moment < 0 ? "nothing allocated"
      : `${device.name}: peak ${format_bytes(total)} at ${this.store.moment(device.moments[moment])} (${parts.join(", ")})`
  }

  private show_legend(device: MemoryDevice): void {
    const {background} = this.store.theme.palette
    const present = this.memory.categories.filter((_, i) => device.moments.some((_, moment) => device.stack(moment)[i] > 0))
    const swatches = legend_items(present.map((category) => [css(memory_colour(category, background)), category]))
    const reserved = device.reserved.moments.length == 0 ? [] : [element("li", {}, "╌╌ reserved by the allocator")]
    const coarse = device.exact ? [] : [element("li", {}, "short changes are drawn together; each part of the trace shows its peak")]
    this.legend.replaceChildren(...swatches, ...reserved, ...coarse)
  }
}

type MemoryBarProps = {plot: p.Property<MemoryPlot>}

export interface MemoryBar extends p.AttrsOf<MemoryBarProps> {}

export class MemoryBar extends Panel {
  static {
    this.prototype.default_view = MemoryBarView
    this.define<MemoryBarProps>(({Ref}) => ({plot: [Ref(MemoryPlot)]}))
  }
}
