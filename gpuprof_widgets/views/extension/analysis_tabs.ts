import type * as p from "@bokehjs/core/properties"

import {button, element} from "./element"
import {panel, PATH_PANEL, type PanelData} from "./engine"
import {Panel, PanelView} from "./panel"

/** A tab per analysis that has something to show. */
export class AnalysisTabsView extends PanelView {
  declare model: AnalysisTabs

  protected readonly css = TABS_CSS
  private tabs: Map<string, HTMLButtonElement>
  private note: HTMLElement

  override connect_signals(): void {
    super.connect_signals()
    this.connect(this.model.properties.active.change, () => this.changed())
  }

  protected build_content(): Node[] {
    const {panels} = this.store.data.header
    this.tabs = new Map(panels.map(({name, title}) => [name, button(title, {role: "tab"}, () => this.model.active = name)]))
    const list = element("div", {class: "tabs", role: "tablist", "aria-label": "Analyses"}, ...this.tabs.values())
    list.addEventListener("keydown", (event) => this.key(event))
    this.note = element("p", {class: "note", role: "note"})
    this.update()
    return [element("div", {class: "row"}, element("h3", {}, "Analyses")), list, this.note]
  }

  private changed(): void {
    this.update()
    // While its tab is open the critical path is on the timeline.
    this.store.show_path = this.model.active == PATH_PANEL
  }

  private update(): void {
    const shown = this.model.shown
    for (const [name, tab] of this.tabs) {
      tab.setAttribute("aria-selected", String(name == shown?.name))
      tab.tabIndex = name == shown?.name ? 0 : -1
    }
    this.note.textContent = shown?.note ?? ""
    this.note.hidden = this.note.textContent == ""
  }

  private key(event: KeyboardEvent): void {
    const names = [...this.tabs.keys()]
    const at = names.indexOf(this.model.shown?.name ?? "")
    const {length} = names
    const to = {ArrowRight: (at + 1) % length, ArrowLeft: (at + length - 1) % length, Home: 0, End: length - 1}[event.key]
    if (to != null) {
      this.model.active = names[to]
      this.tabs.get(names[to])!.focus()
      event.preventDefault()
      event.stopPropagation()
    }
  }
}

type AnalysisTabsProps = {active: p.Property<string>}

export interface AnalysisTabs extends p.AttrsOf<AnalysisTabsProps> {}

export class AnalysisTabs extends Panel {
  declare properties: Panel["properties"] & AnalysisTabsProps

  static {
    this.prototype.default_view = AnalysisTabsView
    this.define<AnalysisTabsProps>(({Str}) => ({active: [Str, ""]}))
  }

  /** The panel that is shown; only this one is put together. */
  get shown(): PanelData | null {
    const {data} = this.store
    return panel(data, this.active == "" ? data.header.panels[0]?.name ?? "" : this.active)
  }
}

const TABS_CSS = `
:host { padding: 8px 0 2px; border-top: 1px solid var(--line); }
.tabs { display: flex; flex-wrap: wrap; gap: 0 2px; margin-top: 4px; border-bottom: 1px solid var(--line); }
.tabs button { border: 0; border-bottom: 3px solid transparent; border-radius: 4px 4px 0 0; margin-bottom: -1px; padding: 3px 10px 2px; background: none; color: var(--muted); }
.tabs button:hover { background: var(--band); }
.tabs button[aria-selected=true] { border-bottom-color: var(--accent); color: var(--fg); }
.tabs button:focus-visible { outline-offset: -2px; }
.note { margin-top: 5px; color: var(--muted); max-width: 1100px; }
`
