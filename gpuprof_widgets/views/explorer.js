/* The front end of `Explorer` (explorer.py), a widget: joins the reports that have its name with the kernel.
 * Where the explorer stands under its cell, that is the plain report below it. Elsewhere, as among other
 * widgets, or where the plain report has merged events, the kernel sends the script of a report of its own.
 */
const CELL = ".jp-Cell, .cell, .cell_container"
const PAUSE_MS = 50

const decoder = new TextDecoder()

function initialize({model}) {
  const uid = model.get("_uid")
  const joined = new WeakSet()
  const on_report = ({detail}) => {
    const store = window.gpuprof?.reports?.[uid]
    if (detail === uid && store != null && !joined.has(store)) {
      joined.add(store)
      store.explore(model)
    }
  }
  if (document.querySelector(`.gpuprof-report[data-uid="${uid}"]`) != null) {
    on_report({detail: uid})
  }
  window.addEventListener("gpuprof-report", on_report)
  return () => window.removeEventListener("gpuprof-report", on_report)
}

function render({model, el}) {
  const uid = model.get("_uid")
  el.classList.add("gpuprof-explorer")
  const ending = new AbortController()
  const {signal} = ending

  /** Shows a report in this view. */
  function show_own() {
    model.on("msg:custom", show)
    model.send({asks: "report"})
  }

  function show(message, [script]) {
    if (message.report !== uid || signal.aborted) {
      return
    }
    model.off("msg:custom", show)
    const element = document.createElement("script")
    element.textContent = decoder.decode(script)
    el.replaceChildren(element)
  }

  /** Takes away the report below, whichever of the two was there first. */
  function replace_plain() {
    const shown = `.gpuprof-report[data-uid="${uid}"]`
    if (el.querySelector(shown) != null) {
      const others = [...place_of(el).querySelectorAll(shown)].filter((report) => !el.contains(report))
      others.filter((report) => report.closest(".gpuprof-explorer") == null).forEach((report) => report.remove())
    }
  }

  async function begin() {
    while (!el.isConnected && !signal.aborted) {
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS))
    }
    const has_plain = place_of(el).querySelector(`.gpuprof-${uid}`) != null
    if (!signal.aborted && (!has_plain || model.get("_is_merged"))) {
      show_own()
    }
  }

  window.addEventListener("gpuprof-report", replace_plain, {signal})
  begin()
  return () => {
    ending.abort()
    model.off("msg:custom", show)
  }
}

/** The cell that an element stands in, or the whole page. */
function place_of(el) {
  return el.closest(CELL) ?? document
}

export default {initialize, render}
