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
/* A shadow at the edge behind which there are more columns; the upper layer moves with them and covers it at the end. */
.frame {
  overflow-x: auto; margin-top: 6px;
  background: linear-gradient(to left, var(--bg) 40%, transparent) right / 40px 100% no-repeat local,
    linear-gradient(to left, rgba(128, 128, 128, 0.6), transparent) right / 16px 100% no-repeat scroll;
}
table { border-collapse: separate; border-spacing: 0; table-layout: fixed; }
th, td { padding: 2px 8px; text-align: left; border-bottom: 1px solid var(--line); height: 24px; }
th { padding: 0 2px; font-weight: 600; vertical-align: bottom; }
th button { border: 0; background: none; width: 100%; text-align: inherit; font-weight: 600; padding: 2px 6px; line-height: 1.25; }
th.number button { text-align: right; white-space: normal; }
td { position: relative; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
td.number { text-align: right; }
td.code { font: 12px var(--mono); }
td.whole, th.whole button { color: var(--muted); }
th.whole button { text-decoration: underline dotted; text-underline-offset: 3px; }
th:first-child, td:first-child { position: sticky; left: 0; z-index: 1; background: var(--bg); }
tr[data-key] { cursor: pointer; }
tr[data-key]:hover, tr[data-key]:hover td:first-child { background: var(--band); }
tr[aria-selected=true], tr[aria-selected=true] td:first-child { background: var(--band); }
tr[aria-selected=true] td:first-child { box-shadow: inset 3px 0 0 var(--accent); }
tr:focus-visible { outline: 2px solid var(--accent); outline-offset: -2px; }
td .swatch { background: var(--row); }
.fill { position: absolute; left: 8px; bottom: 2px; height: 3px; border-radius: 1px; background: var(--row, var(--accent)); }
.change { position: absolute; left: 8px; right: 8px; bottom: 2px; height: 3px; }
.change::before { content: ""; position: absolute; left: 50%; top: -2px; bottom: -1px; width: 1px; background: var(--muted); }
.change span { position: absolute; top: 0; bottom: 0; border-radius: 1px; min-width: 1px; }
.below, .more { margin-top: 6px; }
.below:empty { display: none; }
input[type=checkbox] { height: auto; vertical-align: -2px; accent-color: var(--accent); }
`

export const LINES_CSS = `
.frame { position: relative; overflow: auto; max-height: 430px; border-bottom: 1px solid var(--line); }
th, td { border-bottom: 0; padding: 0 8px; height: 20px; line-height: 20px; white-space: nowrap; }
thead th { position: sticky; top: 0; z-index: 2; padding: 0 2px; background: var(--bg); border-bottom: 1px solid var(--line); height: 26px; vertical-align: middle; }
thead th:first-child { z-index: 3; padding-left: 8px; }
th button[aria-pressed=true] { border-radius: 0; box-shadow: inset 0 -3px 0 var(--accent); }
.cell th { background: var(--band); }
tr[data-key] { scroll-margin-top: 28px; }
td.code { line-height: 20px; }
.at { display: inline-block; width: 32px; margin-right: 8px; text-align: right; font-variant-numeric: tabular-nums; user-select: none; }
.source { position: absolute; inset: 0 4px 0 44px; overflow: hidden; text-overflow: ellipsis; }
.text { position: relative; left: 4px; white-space: pre; tab-size: 4; }
.heat { position: absolute; left: 0; top: 1px; bottom: 1px; min-width: 0; border-radius: 2px; background: var(--heat); }
.silent .text { color: var(--muted); }
/* The heat shows the shares. */
.fill { display: none; }
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
