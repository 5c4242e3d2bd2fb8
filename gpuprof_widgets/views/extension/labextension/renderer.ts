import type {IRenderMime} from "@jupyterlab/rendermime-interfaces"

import {version as bokeh} from "@bokeh/bokehjs/package.json"
import {Widget} from "@lumino/widgets"

import {version} from "./package.json"
import {MIME_TYPE, report_of, script_of} from "./report_data"

const UNLOADED = "The interactive views could not be loaded: reload the page."

let runtime: Promise<object> | undefined

/** BokehJS with our models, loaded for the first report and shared by all: no other BokehJS of the page is touched. */
function load_runtime(): Promise<object> {
  if (runtime == null) {
    runtime = start_runtime()
    runtime.catch(() => { runtime = undefined }) // the next report tries again
  }
  return runtime
}

/** The chunks have names, so that BokehJS's file stays the same when only our code changes. */
async function start_runtime(): Promise<object> {
  const [{Bokeh}, {install}] = await Promise.all([
    import(/* webpackChunkName: "bokeh" */ "./bokeh.cjs"),
    import(/* webpackChunkName: "gpuprof" */ "./gpuprof.cjs"),
  ])
  install({Bokeh})
  return Bokeh
}

/** Shows a report by our own code: nothing that the notebook holds is run, so it need not be trusted. */
class RenderedReport extends Widget implements IRenderMime.IRenderer {
  private shown = ""

  async renderModel({data}: IRenderMime.IMimeModel): Promise<void> {
    const report = report_of(data)
    if (typeof report === "string") {
      this.shown = ""
      this.say(report)
      return
    }
    const script = script_of(data)
    if (script === this.shown) {
      return // the same output, rendered again
    }
    this.shown = script
    try {
      const {show} = await import(/* webpackChunkName: "loader" */ "./loader.cjs")
      const failed = (): void => { this.shown = "" } // the next rendering tries again
      show({...report, bokeh, version: `jupyterlab-${version}`, runtime: null}, this.node, load_runtime(), failed)
    } catch (error) {
      this.shown = ""
      console.error(error)
      this.say(UNLOADED)
    }
  }

  /** Says something in one line, as loader.js does; the static outputs above stay. */
  private say(text: string): void {
    this.node.querySelector(":scope > .gpuprof-message")?.remove()
    const line = document.createElement("div")
    line.className = "gpuprof-message"
    line.setAttribute("role", "status")
    line.style.cssText = "font: 13px/1.5 system-ui, sans-serif; padding: 4px 0"
    line.textContent = text
    this.node.prepend(line)
  }
}

const extension: IRenderMime.IExtension = {
  id: "gpuprof_widgets:report",
  // JupyterLab's own JavaScript renderer has 0 and came first: where both can show an output, the lower rank does.
  rank: -1,
  dataType: "json",
  rendererFactory: {safe: true, mimeTypes: [MIME_TYPE], createRenderer: () => new RenderedReport()},
}

export default extension
