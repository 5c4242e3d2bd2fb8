import type * as p from "@bokehjs/core/properties"

import {button, element, with_code} from "./element"
import {format_count} from "./engine"
import {finding_row, FINDINGS_CSS, type Actions} from "./finding_row"
import {LinesView} from "./lines"
import {Panel, PanelView} from "./panel"
import {remark_place, show_remark} from "./remarks"
import type {FindingLine, Remark} from "./report_state"
import {go_to} from "./scroll_port"
import {has_evidence, light_up} from "./selection"
import {StoreGroup} from "./store_group"
import {CARDS_CSS, jump, summary_cards, view_of, type Card} from "./summary_cards"
import type {TraceStore} from "./trace_store"

/** Number of findings that are not folded, and of rows with the parts of their causes, as in the static part of a report. */
const FIRST_FINDINGS = 5, FIRST_ROWS = 7
/** Height of the window (pixels) from which on the first finding is unfolded: below it the timeline would leave the screen. */
const ROOMY = 880

/** The top of the report: the summary, the findings, and notes on the measurement. */
export class ReportHeaderView extends PanelView {
  declare model: ReportHeader

  protected readonly css = HEADER_CSS + CARDS_CSS + FINDINGS_CSS

  protected build_content(): Node[] {
    const {label, finding_lines} = this
    const title = label == "" ? [] : [element("h2", {}, label)]
    const cards = summary_cards(this.model.cards as Card[], (card) => this.jump(card))
    const is_roomy = window.innerHeight >= ROOMY
    const has_costs = finding_lines.some(({cost}) => cost > 0)
    const actions: Actions = {show: (finding) => this.show(finding), show_line: (finding) => this.show_line(finding)}
    const items = finding_lines.map((finding, i) => finding_row(finding, actions, {is_open: i == 0 && is_roomy, has_costs}))
    const shown = first_rows(finding_lines)
    const findings = element("ul", {class: "findings", "aria-label": "Findings"}, ...items.slice(0, shown))
    const more = element("div", {class: "more"}, ...this.folded(items.slice(shown)), ...this.note_list())
    return [...title, cards, ...this.remark_list(), findings, more]
  }

  /** What the report's author has noted. */
  private remark_list(): Node[] {
    const {stores} = this.store.linked
    const row = (store: TraceStore, remark: Remark): HTMLLIElement => {
      const place = `${stores.length > 1 ? `${store.label} ` : ""}${remark_place(store, remark)}`
      return element("li", {},
        element("div", {class: "head"}, element("span", {class: "number muted"}, place), element("span", {class: "title"}, ...with_code(remark.text))),
        button("show", {title: "Show this time", "aria-label": `show: ${remark.text}`}, () => {
          show_remark(store, remark)
          store.called_up.emit()
        }))
    }
    const rows = stores.flatMap((store) => store.remark_lines.map((remark) => row(store, remark)))
    return rows.length == 0 ? [] : [
      element("div", {class: "remarks-title"}, "Notes"), element("ul", {class: "findings remarks", "aria-label": "Notes"}, ...rows),
    ]
  }

  private folded(items: HTMLLIElement[]): Node[] {
    return items.length == 0 ? [] : [element("details", {class: "folded"},
      element("summary", {}, format_count(items.length, "more finding")),
      element("ul", {"class": "findings", "aria-label": "Lower cost"}, ...items))]
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

  private show(finding: FindingLine): void {
    const store = this.store_of(finding)
    if (!has_evidence(finding)) {
      store.brush(null) // cProfile's calls have no moments
      store.functions_called.emit(finding.function)
      return
    }
    light_up(store, finding, finding.text == "" ? finding.title : finding.text)
    store.called_up.emit()
  }

  private jump(card: Card): void {
    if (has_evidence(card)) {
      light_up(this.store, card, card.about)
    }
    jump(this, card)
  }

  /** Does what a click on the line does, in the table of lines, and brings it onto the screen. */
  private show_line({line}: FindingLine): void {
    const row = view_of(this, LinesView)?.shadow_el.querySelector<HTMLElement>(`tr[data-key="${line}"]`)
    if (row != null) {
      if (row.getAttribute("aria-selected") != "true" || this.store.selection?.source != "lines") {
        row.click()
      }
      go_to(row, "center")
    }
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

type ReportHeaderProps = {cards: p.Property<unknown[]>}

export interface ReportHeader extends p.AttrsOf<ReportHeaderProps> {}

export class ReportHeader extends Panel {
  static {
    this.prototype.default_view = ReportHeaderView
    this.define<ReportHeaderProps>(({List, Unknown}) => ({cards: [List(Unknown), []]}))
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

/** How many rows are not folded: the parts of a cause hide no other finding. */
function first_rows(findings: FindingLine[]): number {
  const wholes = findings.flatMap(({is_part}, row) => is_part == true ? [] : [row])
  return Math.min(wholes[FIRST_FINDINGS] ?? findings.length, FIRST_ROWS)
}

const HEADER_CSS = `
:host { padding: 4px 0 6px; }
.more { display: flex; flex-wrap: wrap; gap: 0 24px; margin-top: 4px; }
.more:empty { display: none; }
details[open] { flex: 1 0 100%; }
summary { cursor: pointer; color: var(--muted); }
details ul { margin: 2px 0 0 18px; color: var(--muted); }
.remarks-title { font-weight: 600; margin-top: 10px; }
.remarks { border-left: 3px solid var(--fg); }
details .findings { margin: 4px 0 0; color: var(--fg); }
`
