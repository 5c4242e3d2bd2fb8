/** The modules that build.sh makes. */

declare module "*/bokeh.cjs" {
  export const Bokeh: object
}

declare module "*/gpuprof.cjs" {
  /** Adds our models to a BokehJS. */
  export const install: (root: {Bokeh: object}) => void
}

declare module "*/loader.cjs" {
  export type Report = {
    uid: string
    explorer: boolean
    bokeh: string
    version: string
    page: string
    runtime: null
  }
  /** The function that views/loader.js is. */
  export const show: (report: Report, output: HTMLElement, provided: Promise<object>, failed: () => void) => void
}
