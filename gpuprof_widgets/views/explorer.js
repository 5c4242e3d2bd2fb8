/* The front end of `Explorer` (explorer.py), a widget: joins the reports that have its name with the kernel.
 * Where the explorer stands under its cell, that is the plain report below it. Elsewhere, as among other
 * widgets, where the plain report has merged events, and for another profile than the first, the kernel sends
 * the script of a report of its own.
 */
const CELL = ".jp-Cell, .cell, .cell_container"
const PAUSE_MS = 50

const decoder = new TextDecoder()

function initialize({model}) {
  const joined = new WeakSet()
  const join = () => {
    const store = window.gpuprof?.reports?.[model.get("_uid")]
    if (store != null && !joined.has(store)) {
      joined.add(store)
      store.explore(model)
    }
  }
  if (document.querySelector(`${shown(model)}[data-complete]`) != null) {
    join()
  }
  const on_report = ({detail}) => detail === model.get("_uid") && join()
  window.addEventListener("gpuprof-report", on_report)
  return () => window.removeEventListener("gpuprof-report", on_report)
}

/** The selector of the reports of the profile that an explorer shows. */
function shown(model) {
  return `.gpuprof-report[data-uid="${model.get("_uid")}"]`
}

/** The selector of the reports of all its profiles. */
function all_shown(model) {
  const [name] = model.get("_uid").split("-")
  return `.gpuprof-report[data-uid^="${name}-"]`
}

function render({model, el}) {
  el.classList.add("gpuprof-explorer")
  const controls = document.createElement("div")
  const place = document.createElement("div")
  controls.className = "gpuprof-controls"
  el.append(controls, place)
  const ending = new AbortController()
  const {signal} = ending

  /** Shows a report in this view. */
  function show_own() {
    model.on("msg:custom", show)
    model.send({asks: "report"})
  }

  function show(message, [script]) {
    if (message.report !== model.get("_uid") || signal.aborted) {
      return
    }
    model.off("msg:custom", show)
    const element = document.createElement("script")
    element.textContent = decoder.decode(script)
    place.replaceChildren(element)
  }

  /** Takes away the report below, whichever of the two was there first. */
  function replace_plain() {
    if (place.querySelector(shown(model)) != null) {
      const others = [...place_of(el).querySelectorAll(all_shown(model))]
      others.filter((report) => report.closest(".gpuprof-explorer") == null).forEach((report) => report.remove())
    }
  }

  /** In a shadow root, as marimo has, a report would not find its place: it stands in its host, and is shown here. */
  function leave_shadow() {
    const {host} = el.getRootNode()
    if (host != null && !signal.aborted) {
      el.append(Object.assign(document.createElement("slot"), {name: "gpuprof-report"}))
      Object.assign(place, {slot: "gpuprof-report", className: "gpuprof-explorer"})
      host.append(place)
    }
  }

  async function begin() {
    while (!el.isConnected && !signal.aborted) {
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS))
    }
    leave_shadow()
    const has_plain = place_of(el).querySelector(`.gpuprof-${model.get("_uid")}`) != null
    if (!signal.aborted && (!has_plain || model.get("_is_merged"))) {
      show_own()
    }
  }

  /** Plain keys are the controls' own; Jupyter looks for this attribute, first of all in what has the focus. */
  const keep_keys = ({target, ctrlKey, metaKey, altKey}) =>
    controls.contains(target) && target.toggleAttribute("data-lm-suppress-shortcuts", !ctrlKey && !metaKey && !altKey)

  const show_controls = () => controls.replaceChildren(...choices_of(model))

  window.addEventListener("gpuprof-report", replace_plain, {signal})
  window.addEventListener("keydown", keep_keys, {signal, capture: true})
  model.on("change:_uid", show_own)
  model.on(CONTROLS, show_controls)
  show_controls()
  begin()
  return () => {
    ending.abort()
    place.remove()
    model.off("change:_uid", show_own)
    model.off(CONTROLS, show_controls)
    model.off("msg:custom", show)
  }
}

/** The cell that an element stands in, or the whole page. */
function place_of(el) {
  return el.closest(CELL) ?? document
}

const CONTROLS = "change:profile_name change:step change:_steps"

/** What the report itself cannot choose: which profile it is of, and a step. */
function choices_of(model) {
  const names = model.get("_names").map((name) => [name, name])
  const steps = model.get("_steps").map((step) => [step, `step ${step}`])
  return [
    ...names.length < 2 ? [] : [choice(model, "profile_name", model.get("_noun"), names)],
    ...steps.length === 0 ? [] : [choice(model, "step", "Step", [[null, "any"], ...steps])],
  ]
}

/** A control for a trait; `options`: its values, each with the text that is shown. */
function choice(model, trait, label, options) {
  const select = document.createElement("select")
  select.append(...options.map(([value, text]) => new Option(text, value ?? "", false, value === model.get(trait))))
  select.addEventListener("change", () => {
    model.set(trait, options[select.selectedIndex][0])
    model.save_changes()
  })
  const el = document.createElement("label")
  el.append(`${label} `, select)
  return el
}

export default {initialize, render}
