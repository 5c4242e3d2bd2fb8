/* Starts one live report in the output it stands in. report.py puts the data in the place of @OUTPUT@:
 * {uid, bokeh: version, document: gzipped base64, runtime: null or {bokeh, extension}: gzipped base64}; a
 * part of the runtime is a script that defines the function `window.gpuprof.part`.
 * One runtime serves all reports of a page, whichever output carries it. Whatever fails, the static
 * outputs above stay as they are and one line says why.
 */
{
  const report = "@OUTPUT@"
  const TRACE_STORE = "gpuprof_widgets.views.models.TraceStore"
  const PATIENCE_MS = 5000
  const CELL = ".jp-Cell, .cell, .cell_container, .output_container"

  const page = window.gpuprof ??= {}
  page.reports ??= {}

  /** The promise of a BokehJS with our extension, and the function that keeps it. */
  if (page.runtime == null) {
    page.runtime = new Promise((resolve) => { page.provide = resolve })
  }

  /** The element of this output, in whichever front end: JupyterLab and nbconvert name it `element`. */
  function place() {
    const script = document.currentScript
    const named = typeof element === "undefined" ? null : element
    const node = named?.jquery != null || Array.isArray(named) ? named[0] : named
    if (node instanceof HTMLElement) {
      return node
    }
    return script?.parentElement ?? document.querySelector("#output-area") ?? document.body
  }

  async function inflate(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0))
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))
    return await new Response(stream).text()
  }

  /** A BokehJS that the page has already, of our version and with our models. */
  function present() {
    const bokeh = window.Bokeh?.[report.bokeh] ?? window.Bokeh
    const has_ours = bokeh?.Models != null && TRACE_STORE in bokeh.Models
    return bokeh?.version === report.bokeh && has_ours ? bokeh : null
  }

  /** A policy of the page may know our scripts by the nonce of this one; it is told only while this one runs. */
  const nonce = document.currentScript?.nonce ?? ""

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
    }
    return own.Bokeh
  }

  function start_runtime() {
    const found = present()
    if (found != null) {
      page.provide(found)
    } else if (report.runtime != null && page.loading == null) {
      page.loading = load(report.runtime)
      page.loading.then(page.provide, () => { page.loading = null })
    }
    return page.loading
  }

  /** The static outputs of this cell: the one marked as such, and what stands between it and this one. */
  function static_outputs(node) {
    for (let at = node; at != null && at !== document.body; at = at.parentElement) {
      const before = []
      for (let other = at.previousElementSibling; other != null && before.length < 2; other = other.previousElementSibling) {
        before.push(other)
        if (other.querySelector(".gpuprof-static") != null || other.matches(".gpuprof-static")) {
          return before
        }
      }
      if (at.matches(CELL)) {
        return []
      }
    }
    return []
  }

  function say(node, text) {
    node.querySelector(":scope > .gpuprof-message")?.remove()
    if (text !== "") {
      const line = document.createElement("div")
      line.className = "gpuprof-message"
      line.setAttribute("role", "status")
      line.style.cssText = "font: 13px/1.5 system-ui, sans-serif; padding: 4px 0; opacity: 0.85"
      line.textContent = text
      node.append(line)
    }
  }

  async function boot(node) {
    if (typeof DecompressionStream === "undefined") {
      throw new Error("this browser cannot decompress the data (no DecompressionStream)")
    }
    const loading = start_runtime()
    const waiting = setTimeout(() => say(node,
      "The interactive views wait for a library that another cell's output holds; run this cell again to embed it here."), PATIENCE_MS)
    try {
      const [bokeh, text] = await Promise.all([loading ?? page.runtime, inflate(report.document)])
      await show(node, bokeh, JSON.parse(text))
    } finally {
      clearTimeout(waiting)
    }
  }

  /** JupyterLab runs the scripts of a reopened notebook before their outputs stand in the page. */
  async function attached(node) {
    while (!node.isConnected) {
      await new Promise((resolve) => setTimeout(resolve, 50))
    }
  }

  /** On a screen the live views replace the static outputs, on paper these stand for them.
   * No policy of a page forbids a sheet that is made this way. */
  function add_style() {
    if (page.style == null) {
      page.style = new CSSStyleSheet()
      page.style.replaceSync(`
        @media screen { .gpuprof-replaced { display: none !important } }
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
      document.adoptedStyleSheets = [...document.adoptedStyleSheets, page.style]
    }
  }

  async function show(node, bokeh, item) {
    await attached(node)
    add_style()
    const target = document.createElement("div")
    target.className = "gpuprof-report"
    target.dataset.lmSuppressShortcuts = "true"
    node.append(target)
    // A front end may render an output again, as after moving its cell: the earlier views go.
    page.views ??= {}
    page.views[report.uid]?.clear()
    try {
      page.views[report.uid] = await bokeh.embed.embed_item(item, target)
    } catch (error) {
      target.remove()
      throw error
    }
    say(node, "")
    for (const output of static_outputs(node)) {
      output.classList.add("gpuprof-replaced")
    }
  }

  const node = place()
  say(node, "")
  boot(node).catch((error) => {
    console.error(error)
    say(node, `The interactive views could not start: ${error?.message ?? error}. The summary above holds the main results.`)
  })
}
