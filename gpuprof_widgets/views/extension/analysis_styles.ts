/** The look of the analyses: tabs, curves, bars, points and tables. */
export const TABS_CSS = `
:host { padding: 8px 0 2px; border-top: 1px solid var(--line); }
.tabs { display: flex; flex-wrap: wrap; gap: 0 2px; margin-top: 4px; border-bottom: 1px solid var(--line); }
.tabs button { border: 0; border-bottom: 3px solid transparent; border-radius: 4px 4px 0 0; margin-bottom: -1px; padding: 3px 10px 2px; background: none; color: var(--muted); }
.tabs button:hover { background: var(--band); }
.tabs button[aria-selected=true] { border-bottom-color: var(--accent); color: var(--fg); }
.tabs button:focus-visible { outline-offset: -2px; }
.note { margin-top: 5px; color: var(--muted); max-width: 1100px; }
`

export const CURVES_CSS = `
.lanes { position: absolute; left: 0; overflow: hidden; pointer-events: none; font: 11px/14px var(--jp-ui-font-family, system-ui, sans-serif); color: var(--gp-foreground, #212121); }
.lanes > div { position: absolute; left: 2px; right: 8px; }
.lanes > div > div { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.lanes .scale { color: var(--gp-muted, #595959); font-variant-numeric: tabular-nums; }
`

export const PLOTS_CSS = `
:host { padding: 6px 0 10px; border-top: 0; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 2px 12px; margin: 2px 0 4px; color: var(--muted); }
.bars { display: grid; grid-template-columns: max-content minmax(0, 1fr) max-content; gap: 3px 10px; align-items: center; max-height: 320px; overflow-y: auto; margin-bottom: 8px; }
.bars .group { max-width: 240px; text-align: right; }
.bars .stack { display: flex; height: 18px; }
.bars .part { flex: none; min-width: 0; border: 0; border-radius: 0; padding: 0; cursor: pointer; box-shadow: inset -1px 0 0 var(--bg); font-size: 11px; line-height: 18px; text-align: center; overflow: hidden; white-space: nowrap; }
.bars .part[aria-selected=true] { outline: 2px solid var(--fg); outline-offset: -2px; }
.points { display: block; width: 100%; height: 300px; margin-bottom: 6px; outline-offset: -2px; }
.points text { font: 11px var(--jp-ui-font-family, system-ui, sans-serif); fill: var(--muted); }
.points text.label { fill: var(--fg); paint-order: stroke; stroke: var(--bg); stroke-width: 3px; }
.points .grid { stroke: var(--line); stroke-width: 1; shape-rendering: crispEdges; }
.points .roof { fill: none; stroke: var(--fg); stroke-width: 1.5; }
.points circle { fill: var(--accent); fill-opacity: 0.45; stroke: var(--accent); stroke-width: 1; cursor: pointer; }
.points circle.chosen { fill: #d55e00; fill-opacity: 0.9; stroke: var(--fg); stroke-width: 2; }
.points circle.under { stroke: var(--fg); stroke-width: 2; }
`
