import type {StyleSheetLike} from "@bokehjs/core/dom"
import type * as p from "@bokehjs/core/properties"
import {LayoutDOM, LayoutDOMView} from "@bokehjs/models/layouts/layout_dom"
import type {UIElement} from "@bokehjs/models/ui/ui_element"

import {plain} from "./engine"
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
    this.shadow_el.addEventListener("copy", (event) => this.copy_plain(event as ClipboardEvent))
  }

  /** Copies selected text with ordinary spaces, so that other programs read its numbers. */
  private copy_plain(event: ClipboardEvent): void {
    const text = selected_text(this.shadow_el)
    if (text != "" && plain(text) != text && event.clipboardData != null) {
      event.clipboardData.setData("text/plain", plain(text))
      event.preventDefault()
    }
  }

  override after_render(): void {
    super.after_render()
    this.store.theme.attach(this.root.el)
  }

  protected abstract build_content(): Node[]
}

/** Returns the selected text of a part of the page; Chromium keeps a selection for each shadow root. */
export function selected_text(root: ShadowRoot): string {
  const {getSelection = () => document.getSelection()} = root as {getSelection?: () => Selection | null}
  return getSelection.call(root)?.toString() ?? ""
}

type PanelProps = {store: p.Property<TraceStore>}

export interface Panel extends p.AttrsOf<PanelProps> {}

export abstract class Panel extends LayoutDOM {
  static override __module__ = "gpuprof_widgets"

  static {
    this.define<PanelProps>(({Ref}) => ({store: [Ref(TraceStore)]}))
  }
}

/** The look of everything that is not drawn on a canvas. Colours come from `Theme`. */
const PANEL_CSS = `
:host {
  --fg: var(--gp-foreground, #212121);
  --muted: var(--gp-muted, #595959);
  --line: var(--gp-line, #cfcfcf);
  --edge: var(--gp-edge, #949494);
  --band: var(--gp-band, #f4f4f4);
  --bg: var(--gp-background, #fff);
  --accent: var(--gp-accent, #005ea2);
  --mono: var(--jp-code-font-family, var(--vscode-editor-font-family, ui-monospace, monospace));
  font: 13px/1.45 var(--jp-ui-font-family, var(--vscode-font-family, system-ui, sans-serif));
  color: var(--fg);
}
* { box-sizing: border-box; }
h2, h3, p, ul, ol { margin: 0; padding: 0; overflow-wrap: anywhere; }
h2 { font-size: 16px; font-weight: 600; }
h3 { font-size: 13px; font-weight: 600; }
button, select, input {
  font: inherit; color: var(--fg); background: var(--bg); border: 1px solid var(--edge); border-radius: 4px;
}
button { padding: 1px 8px; cursor: pointer; }
button:hover:not(:disabled) { border-color: var(--fg); background: var(--band); }
button:disabled { color: var(--muted); cursor: default; opacity: 0.7; }
button[aria-pressed=true] { border-color: var(--accent); box-shadow: inset 0 0 0 1px var(--accent); }
select, input { padding: 1px 6px; height: 24px; }
input::placeholder { color: var(--muted); opacity: 1; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }
.muted { color: var(--muted); }
.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
.row { display: flex; flex-wrap: wrap; align-items: center; gap: 4px 8px; }
.push { margin-left: auto; }
.clip { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.choice { white-space: nowrap; }
.swatch { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin-right: 4px; vertical-align: -1px; box-shadow: inset 0 0 0 1px var(--edge); }
/* Where the reader's system forces its colours, those that mean something stay, and what is chosen takes the system's colour for that. */
@media (forced-colors: active) {
  .swatch, .bar, .heat, .part, .mark, td[style] { forced-color-adjust: none; }
  button:is([aria-pressed=true], [role=tab][aria-selected=true]) {
    forced-color-adjust: none; color: HighlightText !important; background: Highlight; border-color: Highlight;
  }
  tr[aria-selected=true] { outline: 2px solid Highlight; outline-offset: -2px; }
}
`

export const BAR_CSS = `
:host { padding: 8px 0 4px; border-top: 1px solid var(--line); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 12px; color: var(--muted); }
.hint { flex: 1 1 320px; min-width: 0; color: var(--muted); }
kbd { font: 11px var(--mono); border: 1px solid var(--edge); border-radius: 3px; padding: 0 3px; }
dialog { color: var(--fg); background: var(--bg); border: 1px solid var(--edge); border-radius: 6px; max-width: 560px; }
.crumbs { flex: 1 1 480px; display: flex; flex-wrap: wrap; gap: 4px; align-items: center; min-height: 26px; max-width: 100%; }
.crumbs button { max-width: 260px; }
.note { color: var(--muted); }
`

/** What holds a table, which may be wider than the page. */
export const FRAME_CSS = `
/* A shadow at the edge behind which there are more columns; the upper layer moves with them and covers it at the end. */
.frame {
  overflow-x: auto;
  background: linear-gradient(to left, var(--bg) 40%, transparent) right / 40px 100% no-repeat local,
    linear-gradient(to left, rgba(128, 128, 128, 0.6), transparent) right / 16px 100% no-repeat scroll;
}
`
