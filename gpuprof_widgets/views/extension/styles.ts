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

export const HEADER_CSS = `
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

export const TITLE_CSS = `
:host { padding: 6px 0 1px; }
.title { flex-wrap: nowrap; }
.chosen { min-width: 0; }
`

export const STATIC_CSS = `
:host { padding: 8px 0; border-top: 1px solid var(--line); overflow-x: auto; }
code { font: 12px var(--mono); }
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

export const DETAIL_CSS = `
:host { padding: 6px 0 8px; }
.range { min-height: 26px; }
/* Of one height whatever is selected: nothing below moves. */
.chosen { height: 62px; overflow-y: auto; padding: 4px 10px; background: var(--band); border-radius: 4px; }
.chain { list-style: none; display: flex; flex-wrap: wrap; gap: 3px 4px; margin-top: 3px; }
.chain button { max-width: 420px; text-align: left; }
.chain button[aria-current] { border-color: var(--accent); }
.chain li { display: flex; align-items: center; gap: 4px; max-width: 100%; min-width: 0; }
.chain li + li::before { content: "›"; color: var(--muted); }
.facts { display: flex; flex-wrap: wrap; gap: 0 14px; }
.chain > .facts { flex-basis: 100%; }
.title { display: flex; gap: 0 14px; }
.title .name { flex: 0 1 auto; max-width: 60%; }
.title .facts { flex: 1 1 0; min-width: 0; }
.name { font-weight: 600; }
`

export const TABLE_CSS = `
:host { padding: 8px 0; border-top: 1px solid var(--line); }
.frame { overflow-x: auto; margin-top: 6px; container-type: inline-size; }
@container (max-width: 880px) { .extra { display: none; } }
@container (max-width: 1060px) { .many .extra { display: none; } }
table { border-collapse: collapse; width: 100%; table-layout: fixed; }
th, td { padding: 2px 8px; text-align: right; border-bottom: 1px solid var(--line); height: 24px; }
th:first-child, td:first-child { text-align: left; width: auto; }
th.shape, td.shape { text-align: left; }
th { position: relative; padding: 0 2px; font-weight: 600; background: var(--bg); }
th button { border: 0; background: none; width: 100%; text-align: inherit; font-weight: 600; padding: 2px 6px; white-space: nowrap; }
tbody tr { cursor: pointer; }
tbody tr:hover { background: var(--band); }
tbody tr[aria-selected=true] { background: var(--band); box-shadow: inset 3px 0 0 var(--accent); }
tbody tr:focus-visible { outline: 2px solid var(--accent); outline-offset: -2px; }
td { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
td.share { position: relative; padding-left: 2px; }
.below { margin-top: 6px; }
.fill { position: absolute; left: 8px; bottom: 2px; height: 3px; border-radius: 1px; background: var(--bar, var(--accent)); }
.more { margin-top: 6px; }
`

export const DELTA_CSS = `
tr.fixed { cursor: default; }
td.delta { position: relative; }
input[type=checkbox] { height: auto; vertical-align: -2px; accent-color: var(--accent); }
.bars { position: absolute; left: 8px; right: 8px; bottom: 2px; height: 3px; }
.bars::before { content: ""; position: absolute; left: 50%; top: -2px; bottom: -1px; width: 1px; background: var(--muted); }
.bars span { position: absolute; top: 0; bottom: 0; border-radius: 1px; min-width: 1px; }
`

export const LINES_CSS = `
:host { padding: 8px 0; border-top: 1px solid var(--line); }
.frame { position: relative; overflow: auto; max-width: 1440px; max-height: 430px; margin-top: 6px; container-type: inline-size; border-bottom: 1px solid var(--line); }
@container (max-width: 880px) { .extra { display: none; } }
table { border-collapse: separate; border-spacing: 0; width: 100%; table-layout: fixed; }
col.at { width: 44px; }
th, td { padding: 0 8px; text-align: right; height: 20px; line-height: 20px; overflow: hidden; white-space: nowrap; }
thead th { position: sticky; top: 0; z-index: 2; padding: 0 2px; font-weight: 600; background: var(--bg); border-bottom: 1px solid var(--line); height: 26px; }
thead th.code { padding-left: 8px; }
th button { border: 0; background: none; width: 100%; text-align: right; font-weight: 600; padding: 2px 6px; white-space: nowrap; }
th button[aria-pressed=true] { border-radius: 0; box-shadow: inset 0 -3px 0 var(--accent); }
.cell th { text-align: left; font-weight: 600; background: var(--band); }
.at { text-align: right; font-variant-numeric: tabular-nums; user-select: none; }
.code { position: relative; text-align: left; text-overflow: ellipsis; }
td.code, .at { font: 12px/20px var(--mono); }
.text { position: relative; white-space: pre; tab-size: 4; }
.heat { position: absolute; left: 4px; top: 1px; bottom: 1px; min-width: 0; max-width: calc(100% - 8px); border-radius: 2px; background: var(--heat); }
.silent .text { color: var(--muted); }
tr[data-line] { cursor: pointer; }
tr[data-line]:hover { background: var(--band); }
tr[aria-selected=true] { background: var(--band); box-shadow: inset 3px 0 0 var(--accent); }
tr:focus-visible { outline: 2px solid var(--accent); outline-offset: -2px; }
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

export const TOOLTIP_CSS = `
.gp-tooltip {
  position: absolute; z-index: 20; pointer-events: none; box-sizing: border-box; max-width: min(520px, 90%);
  padding: 6px 9px; border-radius: 5px; border: 1px solid var(--gp-line, #ccc);
  background: var(--gp-background, #fff); color: var(--gp-foreground, #212121);
  font: 12px/1.4 var(--jp-ui-font-family, system-ui, sans-serif); box-shadow: 0 2px 8px rgb(0 0 0 / 25%);
}
.gp-tooltip[hidden] { display: none; }
.gp-tooltip b { display: block; overflow-wrap: anywhere; }
.gp-tooltip dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0 10px; margin: 3px 0 0; }
.gp-tooltip dt { color: var(--gp-muted, #595959); }
.gp-tooltip dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; max-height: 2.8em; overflow: hidden; }
`
