import type * as p from "@bokehjs/core/properties"
import type {StyleSheetLike} from "@bokehjs/core/dom"
import type {UIElement} from "@bokehjs/models/ui/ui_element"
import {LayoutDOM, LayoutDOMView} from "@bokehjs/models/layouts/layout_dom"

import {PANEL_CSS} from "./styles"
import {TraceStore} from "./trace_store"

/** A part of the report that is plain DOM; it waits for the trace and takes the page's colours. */
export abstract class PanelView extends LayoutDOMView {
  declare model: Panel

  protected abstract readonly css: string

  get child_models(): UIElement[] {
    return []
  }

  get store(): TraceStore {
    return this.model.store
  }

  override async lazy_initialize(): Promise<void> {
    await super.lazy_initialize()
    await this.store.ready
  }

  override stylesheets(): StyleSheetLike[] {
    return [...super.stylesheets(), PANEL_CSS, this.css]
  }

  override render(): void {
    super.render()
    this.shadow_el.append(...this.build_content())
    this.shadow_el.addEventListener("keydown", (event) => this.escape(event as KeyboardEvent))
  }

  /** Escape restores the report from wherever the focus is; a dialog and a filled search box keep it. */
  private escape(event: KeyboardEvent): void {
    const {target} = event
    const keeps = target instanceof HTMLInputElement && target.value != "" || target instanceof Element && target.closest("dialog") != null
    if (event.key == "Escape" && !keeps && !event.defaultPrevented) {
      event.preventDefault()
      this.store.reset()
    }
  }

  override after_render(): void {
    super.after_render()
    this.store.theme.attach(this.root.el)
  }

  protected abstract build_content(): Node[]
}

export abstract class Panel extends LayoutDOM {
  declare properties: Panel.Props
  declare __view_type__: PanelView

  constructor(attrs?: Partial<Panel.Attrs>) {
    super(attrs)
  }

  static {
    this.define<Panel.Props>(({Ref}) => ({
      store: [Ref(TraceStore)],
    }))
  }
}

export namespace Panel {
  export type Attrs = p.AttrsOf<Props>
  export type Props = LayoutDOM.Props & {store: p.Property<TraceStore>}
}

export interface Panel extends Panel.Attrs {}
