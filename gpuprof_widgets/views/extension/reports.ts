import type {TraceStore} from "./trace_store"

type Page = {reports?: Record<string, TraceStore>}

/** `window.gpuprof.reports[uid]`: what the browser tests read numbers from. */
function reports(): Record<string, TraceStore> {
  const page = window as unknown as {gpuprof?: Page}
  page.gpuprof ??= {}
  page.gpuprof.reports ??= {}
  return page.gpuprof.reports
}

export function publish(store: TraceStore): void {
  reports()[store.uid] = store
}

export function withdraw(store: TraceStore): void {
  if (reports()[store.uid] === store) {
    delete reports()[store.uid]
  }
}
