import {button, element} from "./element"
import {format_count} from "./engine"
import {Panel, PanelView} from "./panel"
import {HEADER_CSS} from "./styles"
import type {FindingLine, TraceStore} from "./trace_store"
import {zoom_to} from "./viewport"

/** Those of little cost are folded; the static part of a report shows as many. */
const FIRST_FINDINGS = 5

/** Names stand between backticks in a finding; here they are set as code. */
function with_code(text: string): (Node | string)[] {
  return text.split("`").map((part, i) => i % 2 == 1 ? element("code", {}, part) : part)
}

/** The first lines of the report: what is slow, in words, and what was not measured. */
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
    store.choose(rows.length == 0 ? null
      : {source: "finding", row: -1, rows: Int32Array.from(rows), key: text, labels,
        text: rows.length < events ? `Finding on ${format_count(events, "event")}, the first` : "Finding"})
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
  declare __view_type__: ReportHeaderView

  static override __module__ = "gpuprof_widgets.views.models"

  static {
    this.prototype.default_view = ReportHeaderView
  }
}
