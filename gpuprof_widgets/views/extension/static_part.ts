import type * as p from "@bokehjs/core/properties"

import {element} from "./element"
import {Panel, PanelView} from "./panel"

/** A part of the script-free summary that stands in the live report as well. */
export class StaticPartView extends PanelView {
  declare model: StaticPart

  protected readonly css = STATIC_CSS

  protected build_content(): Node[] {
    const part = element("div", {})
    part.innerHTML = this.model.html  // made by our own Python, with all names escaped
    return [part]
  }
}

export class StaticPart extends Panel {
  declare properties: StaticPart.Props
  declare __view_type__: StaticPartView

  static override __module__ = "gpuprof_widgets.views.models"

  static {
    this.prototype.default_view = StaticPartView
    this.define<StaticPart.Props>(({Str}) => ({
      html: [Str, ""],
    }))
  }
}

export namespace StaticPart {
  export type Attrs = p.AttrsOf<Props>
  export type Props = Panel.Props & {html: p.Property<string>}
}

export interface StaticPart extends StaticPart.Attrs {}

const STATIC_CSS = `
:host { padding: 8px 0; border-top: 1px solid var(--line); overflow-x: auto; }
code { font: 12px var(--mono); }
`
