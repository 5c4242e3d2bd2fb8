/* How VS Code puts outputs into its page, which is one frame for all cells of a notebook. Written after
 * microsoft/vscode: extensions/notebook-renderers/src/index.ts (renderHTML, renderImage, renderJavascript, domEval) and
 * src/vs/workbench/contrib/notebook/browser/view/renderers/webviewPreloads.ts (OutputCell, OutputContainer), contrib/webview/browser/
 * pre/index.html (applyStyles) and themeing.ts.
 */
document.head.insertAdjacentHTML("beforeend", `<style>
  html, body { background-color: transparent; color-scheme: normal }
  body { color: var(--vscode-editor-foreground) }
</style>`)

/* Sets a theme, as when the page is made and when the reader chooses another one. */
function useTheme(kind, variables) {
  const {style} = document.documentElement
  document.body.className = kind == "vscode-high-contrast-light" ? `${kind} vscode-high-contrast` : kind
  document.body.dataset.vscodeThemeKind = kind
  for (const name of [...style].filter((name) => name.startsWith("--vscode-"))) {
    style.removeProperty(name)
  }
  for (const [name, value] of Object.entries(variables)) {
    style.setProperty(`--vscode-${name}`, value)
  }
}

function made(parent, name) {
  const el = document.createElement("div")
  el.className = name
  parent.append(el)
  return el
}

/* A script that came in as HTML does not run: a copy of it does, and leaves the page at once. */
function domEval(container) {
  for (const script of container.querySelectorAll("script")) {
    const copy = document.createElement("script")
    copy.text = script.innerText
    copy.type = script.type
    container.append(copy)
    copy.remove()
  }
}

const RENDERERS = {
  html(text, output) {
    const el = document.createElement("div")
    el.innerHTML = text
    output.append(el)
    domEval(el)
  },
  image(source, output) {
    const image = document.createElement("img")
    image.src = source
    made(output, "display").append(image)
  },
  javascript(text, output) {
    const script = document.createElement("script")
    script.type = "module"
    script.textContent = text
    const el = document.createElement("div")
    el.innerHTML = script.outerHTML
    output.append(el)
    domEval(el)
  },
}

/* Renders the outputs of a cell, [kind, content] each, in the order that is named. */
function renderCell(outputs, order) {
  const cell = made(document.body, "cell_container")
  const holders = outputs.map(() => made(made(cell, "output_container"), "output"))
  for (const number of order) {
    const [kind, content] = outputs[number]
    RENDERERS[kind](content, holders[number])
  }
}
