import type * as p from "@bokehjs/core/properties"

import {button, element, with_code} from "./element"
import {format_count} from "./engine"
import {Panel, PanelView} from "./panel"
import {StoreGroup} from "./store_group"
import {zoom_to, type FindingLine, type TraceStore} from "./trace_store"

/** Number of findings that are not folded, as in the static part of a report. */
const FIRST_FINDINGS = 5

/** The first lines of the report: the findings in words, and notes on the measurement. */
export class ReportHeaderView extends PanelView {
  declare model: ReportHeader

  protected readonly css = HEADER_CSS

  protected build_content(): Node[] {
    const {label, finding_lines} = this
    const title = label == "" ? [] : [element("h2", {}, label)]
    const items = finding_lines.map((finding) => this.finding(finding))
    const findings = element("ul", {class: "findings", "aria-label": "Findings"}, ...items.slice(0, FIRST_FINDINGS))
    return [...title, findings, ...this.folded(items.slice(FIRST_FINDINGS)), ...this.note_list()]
  }

  private folded(items: HTMLLIElement[]): Node[] {
    return items.length == 0 ? [] : [element("details", {class: "folded"},
      element("summary", {}, format_count(items.length, "more finding")),
      element("ul", {"class": "findings", "aria-label": "Of less cost"}, ...items))]
  }

  protected get label(): string {
    return this.store.label
  }

  protected get finding_lines(): FindingLine[] {
    return this.store.finding_lines
  }

  protected get notes(): string[] {
    return [...this.store.notes, ...this.store.data.header.notes]
  }

  /** The trace that a finding is about. */
  protected store_of(_finding: FindingLine): TraceStore {
    return this.store
  }

  private finding(finding: FindingLine): HTMLLIElement {
    const {text, remedy, start, rows} = finding
    const words = element("span", {}, ...with_code(text), " ", element("span", {class: "remedy"}, ...with_code(remedy)))
    const item = element("li", {}, words)
    if (start != null || rows.length > 0) {
      const title = "Zoom to the time range and highlight the events that this is about"
      item.append(button("show", {title, "aria-label": `show: ${text}`}, () => this.show(finding)))
    }
    return item
  }

  private show(finding: FindingLine): void {
    const {text, start, end, rows, events} = finding
    const store = this.store_of(finding)
    if (start != null && end != null) {
      store.brush([start, end])
      zoom_to(store, start, end, 0.25)
    }
    const labels = new Set(rows.map((row) => store.data.label[row]))
    store.choose({source: "finding", row: -1, rows: Int32Array.from(rows), key: text, labels, text, events})
    store.called_up.emit(false)
  }

  private note_list(): Node[] {
    const {notes} = this
    if (notes.length == 0) {
      return []
    }
    const count = notes.length == 1 ? "1 note" : `${notes.length} notes`
    return [element("details", {},
      element("summary", {}, `${count} on what was measured and how it is shown`),
      element("ul", {}, ...notes.map((note) => element("li", {}, note))))]
  }
}

export class ReportHeader extends Panel {
  static {
    this.prototype.default_view = ReportHeaderView
  }
}

/** The first lines of a report on several traces; a finding may be about one of them. */
export class GroupHeaderView extends ReportHeaderView {
  declare model: GroupHeader

  override async lazy_initialize(): Promise<void> {
    await super.lazy_initialize()
    await this.model.group.ready
  }

  protected override get label(): string {
    return this.model.label
  }

  protected override get finding_lines(): FindingLine[] {
    return this.model.findings as FindingLine[]
  }

  /** Equal notes of several traces are listed once. */
  protected override get notes(): string[] {
    const {group, notes} = this.model
    return [...new Set([...notes, ...group.stores.flatMap((store) => store.data.header.notes)])]
  }

  protected override store_of({of}: FindingLine): TraceStore {
    return this.model.group.stores[of ?? 0]
  }
}

type GroupHeaderProps = {
  group: p.Property<StoreGroup>
  label: p.Property<string>
  findings: p.Property<unknown[]>
  notes: p.Property<string[]>
}

export interface GroupHeader extends p.AttrsOf<GroupHeaderProps> {}

export class GroupHeader extends ReportHeader {
  static {
    this.prototype.default_view = GroupHeaderView
    this.define<GroupHeaderProps>(({List, Ref, Str, Unknown}) => ({
      group: [Ref(StoreGroup)],
      label: [Str, ""],
      findings: [List(Unknown), []],
      notes: [List(Str), []],
    }))
  }
}

const HEADER_CSS = `
:host { padding: 4px 0 8px; }
.findings { list-style: none; margin: 6px 0 0; display: grid; gap: 4px; }
.findings li { display: flex; gap: 8px; align-items: baseline; }
.findings li > span { flex: 0 1 68em; min-width: 0; overflow-wrap: anywhere; }
.findings li::before { content: ""; flex: none; width: 6px; height: 6px; border-radius: 50%; background: var(--accent); align-self: start; margin-top: 7px; }
.findings button { flex: none; }
:host > .findings li:first-child > span { font-weight: 600; }
.findings code { font: 12px var(--mono); }
.remedy { color: var(--muted); font-weight: 400; }
details { margin-top: 6px; }
summary { cursor: pointer; color: var(--muted); }
details ul { margin: 2px 0 0 18px; color: var(--muted); }
details .findings { margin: 4px 0 0; color: var(--fg); }
`
