/* The front end of `Chart` (explorer.py), a widget: runs the scripts of figures that the kernel sends. */
const decoder = new TextDecoder()

function render({model, el}) {
  el.style.position = "relative"
  let latest = null

  /** The figure before stays until this one is drawn, so that nothing below jumps. */
  function draw({draws}, [script]) {
    latest = {uid: draws, place: document.createElement("div")}
    if (draws == null) {
      el.replaceChildren()
      return
    }
    [...el.children].slice(1).forEach((place) => place.remove()) // not drawn yet, as where the chart is far from the screen
    latest.place.style.cssText = "position: absolute; top: 0; left: 0; right: 0; visibility: hidden"
    el.append(latest.place)
    const element = document.createElement("script")
    element.textContent = decoder.decode(script)
    latest.place.append(element)
  }

  function show_drawn({detail}) {
    if (detail === latest?.uid) {
      show_latest()
    }
  }

  function show_latest() {
    [...el.children].filter((place) => place !== latest.place).forEach((place) => place.remove())
    latest.place.style.cssText = ""
  }

  /** Where a figure cannot be drawn, a message says why. */
  const failing = new MutationObserver(() => latest?.place.querySelector(".gpuprof-message") != null && show_latest())
  failing.observe(el, {childList: true, subtree: true})
  window.addEventListener("gpuprof-report", show_drawn)
  model.on("msg:custom", draw)
  model.send({asks: "figure"})
  return () => {
    failing.disconnect()
    window.removeEventListener("gpuprof-report", show_drawn)
    model.off("msg:custom", draw)
  }
}

export default {render}
