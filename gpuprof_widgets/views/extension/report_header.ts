import {button, element} from "./element"
import {Panel, PanelView} from "./panel"
import {HEADER_CSS} from "./styles"
import type {FindingLine} from "./trace_store"
import {zoom_to} from "./viewport"

/** Names stand between backticks in a finding; here they are set as code. */
function with_code(text: string): (Node | string)[] {
  return text.split("`").map((part, i) => i % 2 == 1 ? element("code", {}, part) : part)
}

/** The first lines of the report: what is slow, in words, and what was not measured. */
export class ReportHeaderView extends PanelView {
  declare model: ReportHeader

  protected readonly css = HEADER_CSS

  protected build_content(): Node[] {
    const {label, finding_lines} = this.store
    const title = label == "" ? [] : [element("h2", {}, label)]
    const findings = element("ul", {class: "findings", "aria-label": "Findings"},
      ...finding_lines.map((finding) => this.finding(finding)))
    return [...title, findings, ...this.notes()]
  }

  private finding({text, remedy, start, end}: FindingLine): HTMLLIElement {
    const words = element("span", {}, ...with_code(text), " ", element("span", {class: "remedy"}, ...with_code(remedy)))
    const item = element("li", {}, words)
    if (start != null && end != null) {
      const title = "Select this time range and zoom to it"
      item.append(button("show", {title, "aria-label": `show: ${text}`}, () => this.show(start, end)))
    }
    return item
  }

  private show(start: number, end: number): void {
    this.store.brush([start, end])
    zoom_to(this.store, start, end, 0.25)
  }

  private notes(): Node[] {
    const notes = [...this.store.notes, ...this.store.data.header.notes]
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
