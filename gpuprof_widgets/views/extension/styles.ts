/** The look of everything that is not drawn on a canvas. Colours come from `Theme`. */
export const PANEL_CSS = `
:host {
  --fg: var(--gp-foreground, #212121);
  --muted: var(--gp-muted, #595959);
  --line: var(--gp-line, #cfcfcf);
  --band: var(--gp-band, #f4f4f4);
  --bg: var(--gp-background, #fff);
  --accent: var(--gp-accent, #005ea2);
  --mono: var(--jp-code-font-family, var(--vscode-editor-font-family, ui-monospace, monospace));
  font: 13px/1.45 var(--jp-ui-font-family, var(--vscode-font-family, system-ui, sans-serif));
  color: var(--fg);
}
* { box-sizing: border-box; }
h2, h3, p, ul, ol { margin: 0; padding: 0; }
h2 { font-size: 16px; font-weight: 600; }
h3 { font-size: 13px; font-weight: 600; }
button, select, input {
  font: inherit; color: var(--fg); background: var(--bg); border: 1px solid var(--line); border-radius: 4px;
}
button { padding: 1px 8px; cursor: pointer; }
button:hover:not(:disabled) { border-color: var(--muted); background: var(--band); }
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
.swatch { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin-right: 4px; vertical-align: -1px; }
.off { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
`

export const BAR_CSS = `
:host { padding: 8px 0 4px; border-top: 1px solid var(--line); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 12px; color: var(--muted); }
.hint { color: var(--muted); }
kbd { font: 11px var(--mono); border: 1px solid var(--line); border-radius: 3px; padding: 0 3px; }
dialog { color: var(--fg); background: var(--bg); border: 1px solid var(--line); border-radius: 6px; max-width: 560px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 3px 12px; margin: 8px 0; }
dd { margin: 0; }
.crumbs { display: flex; flex-wrap: wrap; gap: 4px; align-items: center; min-height: 26px; max-width: 100%; }
.crumbs button { max-width: 260px; }
.note { color: var(--muted); }
.bad { color: var(--fg); text-decoration: underline wavy #d55e00; }
`

export const PLOT_CSS = `
.surface:focus { outline: none; }
.surface:focus-visible { outline: 2px solid var(--gp-accent, #005ea2); }
.gutter { position: absolute; z-index: 2; overflow: hidden; left: 0; font: 11px/15px var(--jp-ui-font-family, system-ui, sans-serif); color: var(--gp-foreground, #212121); }
.gutter .names { position: absolute; inset: 0; will-change: transform; }
.gutter .names > * { position: absolute; left: 0; right: 6px; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; text-align: left; }
.gutter .group { font-weight: 600; }
.gutter .tall { white-space: normal; overflow-wrap: anywhere; }
.gutter button { font: inherit; color: inherit; background: none; border: 0; padding: 0 2px; cursor: pointer; border-radius: 3px; }
.gutter button:hover { background: var(--gp-band, #eee); }
.gutter button:focus-visible { outline: 2px solid var(--gp-accent, #005ea2); outline-offset: -2px; }
.scroll { position: absolute; z-index: 2; overflow-y: scroll; overflow-x: hidden; width: 14px; }
`

