/* Starts one live report in the output it stands in. This file is one function: report.py writes a call of it with the
 * data into the notebook, and the extension of JupyterLab (extension/labextension) is built with it. `report` is
 * {uid, explorer: whether a widget stands between picture and script, bokeh: version, version: of the runtime, and of
 * {page: data of a report, document: of a figure of the user's} one, gzipped base64, runtime: null or {version, bokeh,
 * extension}: gzipped base64}; a part of the runtime is a script that defines the function `window.gpuprof.part`.
 * `place`: the output; `provided`: the promise of a runtime, where the notebook's is not needed; `failed` is called where the
 * report could not start. The static outputs above are the summary, an element with the class `gpuprof-UID`, and a picture.
 * One runtime serves all reports of a page and version, whichever output carries it. Whatever fails, the static
 * outputs stay as they are and one line on top of them says why.
 * A report lives as long as its element: a front end may take it out of the page and put it back, and what
 * it lets go of is collected as garbage. So nothing here may hold it for good.
 */
(report, place, provided, failed) => {
  const PAGE = "gpuprof_widgets.Page"
  const MOST_BYTES = 2 ** 29
  const CELL = ".jp-Cell, .cell, .cell_container"
  /** What belongs to this report stands inside of it: of an output that a stranger may have made, in the same output area. */
  const EDGE = provided == null ? CELL : `.jp-OutputArea, ${CELL}`
  const MISSING = "The interactive views need a library that no output of this page holds. Run this cell again, unchanged: "
    + "its new output will hold it. With %config GpuProfile.embed = 'always' every new output does."
  const PATIENCE_MS = 5000
  const SEARCH_MS = 2000
  const PAUSE_MS = 50

  const page = window.gpuprof ??= {}
  /** What reports of one version share: those of another have a runtime of their own. */
  const shared = page[report.version] ??= {}
  /** Views by reports, and the summaries of reports. */
  shared.views ??= new WeakMap()
  shared.taken ??= new WeakSet()
  /** The promise of a BokehJS with our extension, and the function that keeps it. */
  shared.runtime ??= new Promise((resolve) => { shared.provide = resolve })

  /** A policy of the page may know our scripts by the nonce of this one; it is told only while this one runs. */
  const nonce = document.currentScript?.nonce ?? ""

  const pause = () => new Promise((resolve) => setTimeout(resolve, PAUSE_MS))

  /** The element of this output: JupyterLab and nbconvert name it `element`; null in a module, as VS Code runs scripts. */
  function own_output() {
    const named = place ?? (typeof element === "undefined" ? null : element)
    const node = named?.jquery != null || Array.isArray(named) ? named[0] : named
    if (node instanceof HTMLElement) {
      return node
    }
    const parent = document.currentScript?.parentElement
    return parent == null || parent === document.head ? null : parent
  }

  /** The summary of this report, or undefined. A copied cell has the same one: the nearest, or one without a report. */
  function nearest_summary(output) {
    const root = output?.getRootNode() ?? document
    const all = [...root.querySelectorAll(`.gpuprof-${CSS.escape(report.uid)}`)]
    if (output == null) {
      return all.find((summary) => !shared.taken.has(summary)) ?? all[0]
    }
    for (let at = output; at != null && at !== document.body; at = at.parentElement) {
      const before = all.filter((summary) => at.contains(summary) && is_before(summary, output))
      if (before.length > 0 || at.matches(EDGE)) {
        return before.at(-1)
      }
    }
    return undefined
  }

  function is_before(summary, output) {
    return (summary.compareDocumentPosition(output) & Node.DOCUMENT_POSITION_FOLLOWING) !== 0
  }

  /** Waits for the summary, since a front end may render the outputs of a cell in any order. */
  async function find_summary(output) {
    const end = Date.now() + SEARCH_MS
    let summary = nearest_summary(output)
    while (summary == null && Date.now() < end) {
      await pause()
      summary = nearest_summary(output)
    }
    if (summary != null) {
      shared.taken.add(summary)
      summary.querySelector(".gpuprof-trust")?.remove() // scripts run here
    }
    return summary
  }

  /** A place for the report where the front end names none. */
  function place_below(summary) {
    if (summary == null) {
      return document.querySelector("#output-area") ?? document.body
    }
    const next = summary.nextElementSibling
    if (next?.matches(".gpuprof-place")) {
      return next
    }
    const place = document.createElement("div")
    place.className = "gpuprof-place"
    summary.after(place)
    return place
  }

  /** The largest element that holds the summary without the report, and the picture that follows it. */
  function static_outputs(summary, node) {
    if (summary == null) {
      return []
    }
    let output = summary
    while (output.parentElement != null && output.parentElement !== document.body && !output.parentElement.contains(node)) {
      output = output.parentElement
    }
    const picture = picture_after(summary, node)
    return picture == null ? [output] : [output, picture]
  }

  /** The next output of the cell, if it is a picture. */
  function picture_after(summary, node) {
    for (let at = summary; at != null && at !== document.body && !at.matches(EDGE); at = at.parentElement) {
      const next = at.nextElementSibling === node ? node.nextElementSibling : at.nextElementSibling
      if (next != null) {
        const is_picture = next.matches("img") || next.querySelector("img") != null
        return is_picture && !next.contains(node) ? next : null
      }
    }
    return null
  }

  /** The output of an explorer's widget, which follows the picture. */
  function widget_output(summary, node) {
    const next = summary && picture_after(summary, node)?.nextElementSibling
    return next == null || next.contains(node) ? null : next
  }

  /** The text behind gzipped base64; little of it may stand for more than a page can hold. */
  async function inflate(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))
    const reader = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")).getReader()
    const parts = []
    let count = 0
    for (let {done, value} = await reader.read(); !done; ({done, value} = await reader.read())) {
      count += value.length
      if (count > MOST_BYTES) {
        await reader.cancel()
        throw new Error("the report's data is larger than any report")
      }
      parts.push(value)
    }
    return await new Blob(parts).text()
  }

  /** A BokehJS that the page has already, of our version and with our models. */
  function present() {
    const bokeh = window.Bokeh?.[report.bokeh] ?? window.Bokeh
    const has_ours = bokeh?.Models != null && PAGE in bokeh.Models
    return bokeh?.version === report.bokeh && has_ours ? bokeh : null
  }

  /** Runs a part of the runtime with `this` as its global, so that no other BokehJS of the page is replaced.
   * As an element it runs under a Content-Security-Policy that forbids eval and knows it by hash or nonce. */
  function run(code, global) {
    const script = document.createElement("script")
    script.nonce = nonce
    script.textContent = code
    document.head.append(script)
    script.remove()
    if (page.part == null) {
      new Function(code)()
    }
    page.part.call(global)
    delete page.part
  }

  async function load({bokeh, extension}) {
    const sources = await Promise.all([inflate(bokeh), inflate(extension)])
    const own = {}
    for (const source of sources) {
      run(source, own)
      await new Promise((resolve) => setTimeout(resolve)) // lets the browser answer in between
    }
    return own.Bokeh
  }

  /** Loads the runtime that this output carries if the page has none; returns the promise of one. */
  async function start_runtime() {
    if (provided != null) {
      return provided
    }
    if (typeof DecompressionStream === "undefined") {
      throw new Error("this browser cannot decompress the data (no DecompressionStream)")
    }
    const found = present()
    if (found != null) {
      shared.provide(found)
    } else if (report.runtime != null && shared.loading == null) {
      shared.loading = load(report.runtime)
      shared.loading.then(shared.provide, () => { shared.loading = null })
    }
    return shared.loading ?? shared.runtime
  }

  /** Says something in one line on top of the cell's static outputs; without text takes it back. */
  function say(node, summary, text) {
    for (const holder of [node, summary]) {
      holder?.querySelector(":scope > .gpuprof-message")?.remove()
    }
    if (text !== "") {
      const line = document.createElement("div")
      line.className = "gpuprof-message"
      line.setAttribute("role", "status")
      line.style.cssText = "font: 13px/1.5 system-ui, sans-serif; padding: 4px 0"
      line.textContent = text
      const holder = summary ?? node
      holder.prepend(line)
    }
  }

  /** Starts the report once there is a runtime and the output is near the screen: it need not stand in the page before. */
  async function begin(output, runtime) {
    const node = output ?? place_below(await find_summary(null))
    say(node, null, "")
    const waiting = setTimeout(() => provided ?? shared.loading ?? say(node, nearest_summary(node), MISSING), PATIENCE_MS)
    try {
      const bokeh = await runtime
      bokeh.Models.get(PAGE).start_near_screen(node, () => start(node, bokeh))
    } catch (error) {
      await fail(node, error)
    }
    clearTimeout(waiting)
  }

  async function start(node, bokeh) {
    const searching = find_summary(node)
    try {
      await show(node, bokeh, await inflate(report.page ?? report.document))
      searching.then((summary) => replace(node, summary))
    } catch (error) {
      await fail(node, error)
    }
  }

  /** Hides what the views stand for. */
  function replace(node, summary) {
    say(node, summary, "")
    add_style()
    for (const replaced of static_outputs(summary, node)) {
      replaced.classList.add("gpuprof-replaced")
    }
    if (report.explorer) {
      widget_output(summary, node)?.classList.add("gpuprof-widget")
    }
  }

  async function fail(node, error) {
    failed?.()
    console.error(error)
    say(node, await find_summary(node), `The interactive views could not start: ${error?.message ?? error}. The summary below holds the main results.`)
  }

  /** On a screen the live views replace the static outputs, on paper these stand for them.
   * No policy of a page forbids a sheet that is made this way. */
  function add_style() {
    if (shared.style == null) {
      shared.style = new CSSStyleSheet()
      shared.style.replaceSync(`
        @media screen { .gpuprof-replaced { display: none !important } }
        /* A ring shows that the report has the keys; its room is always there, because front ends cut off what is outside. */
        .gpuprof-report > [tabindex] { padding: 4px 6px; outline: none }
        .gpuprof-report > :focus-within { outline: 2px solid var(--gp-accent, Highlight); outline-offset: -2px }
        /* Without its kernel a widget only says that it was not found. */
        .gpuprof-widget:not(:has(.gpuprof-explorer)) { display: none !important }
        @media print {
          .gpuprof-report, .gpuprof-message, .gpuprof-trust { display: none !important }
          .gpuprof-static, .gpuprof-static * { color: #000 !important; print-color-adjust: exact }
          .gpuprof-static table { font-size: 9px }
          .gpuprof-static td { padding: 1px 4px !important; min-width: 0 !important; white-space: nowrap }
          .gpuprof-static td[role] { white-space: normal }
          .gpuprof-static td[role=rowheader] { min-width: 130px !important; overflow-wrap: anywhere }
          .gpuprof-static tr, .gpuprof-static li { break-inside: avoid }
          .gpuprof-static div:has(+ table) { break-after: avoid }
        }`)
      document.adoptedStyleSheets = [...document.adoptedStyleSheets, shared.style]
    }
  }

  async function show(node, bokeh, content) {
    const target = document.createElement("div")
    target.className = "gpuprof-report"
    target.dataset.uid = report.uid
    const earlier = node.querySelectorAll(":scope > .gpuprof-report") // a front end may render an output again
    node.append(target)
    try {
      const ours = bokeh.Models.get(PAGE)
      if (report.page == null) {
        const views = await bokeh.embed.embed_item(JSON.parse(content), target)
        ours.hold_keys(views.roots[0].el)
        keep_with(target, bokeh, views)
      } else {
        keep_with(target, bokeh, await ours.show(content, target))
      }
      target.dataset.complete = ""
    } catch (error) {
      target.remove()
      throw error
    }
    earlier.forEach((one) => one.remove())
    window.dispatchEvent(new CustomEvent("gpuprof-report", {detail: report.uid})) // explorer.js joins it
  }

  /** BokehJS keeps what it shows for good; from here on only the report's element does. */
  function keep_with(target, bokeh, views) {
    shared.views.set(target, views)
    for (const view of views.roots) {
      bokeh.index.delete(view)
      const number = bokeh.documents.indexOf(view.model.document)
      if (number >= 0) {
        bokeh.documents.splice(number, 1)
      }
    }
  }

  begin(own_output(), start_runtime())
}
