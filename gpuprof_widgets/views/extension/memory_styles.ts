/** The look of the memory view's own parts. */
export const MEMORY_PLOT_CSS = `
.bytes { position: absolute; left: 0; overflow: hidden; pointer-events: none; font: 11px/12px var(--jp-ui-font-family, system-ui, sans-serif); color: var(--gp-foreground, #212121); }
.bytes > div { position: absolute; right: 8px; transform: translateY(-50%); font-variant-numeric: tabular-nums; }
`
