/** The look of the memory view's own parts. */
export const MEMORY_PLOT_CSS = `
.bytes { position: absolute; left: 0; overflow: hidden; pointer-events: none; font: 11px/12px var(--jp-ui-font-family, system-ui, sans-serif); color: var(--gp-foreground, #212121); }
.bytes > div { position: absolute; right: 8px; transform: translateY(-50%); font-variant-numeric: tabular-nums; }
`

export const MEMORY_TABLE_CSS = `
:host { padding: 6px 0 8px; }
.frame { overflow-x: auto; margin-top: 4px; }
table { border-collapse: collapse; width: 100%; table-layout: fixed; }
th, td { padding: 2px 8px; text-align: left; border-bottom: 1px solid var(--line); height: 24px; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
th { font-weight: 600; }
td.number, th.number { text-align: right; }
tbody tr { cursor: pointer; }
tbody tr:hover { background: var(--band); }
tbody tr[aria-selected=true] { background: var(--band); box-shadow: inset 3px 0 0 var(--accent); }
tbody tr:focus-visible { outline: 2px solid var(--accent); outline-offset: -2px; }
td.code { font-family: var(--mono); font-size: 12px; }
.more { margin-top: 6px; }
`
