import {element, regex_button} from "./element"
import {
  format_count, match_text, match_totals, matcher, matching_calls, search, sum_of_totals, type Matcher, type Matches,
} from "./engine"
import {InstanceSteps, step_instance, STEPS_CSS} from "./instances"
import {KeySheet, SHEET_CSS} from "./key_sheet"
import {BAR_CSS, Panel, PanelView} from "./panel"
import {is_plain, TEXT} from "./report_keys"
import type {TraceStore} from "./trace_store"

const ABOUT = "The time in which a match ran. Nested matches on one thread or stream count once; threads and streams are added up."
const ABOUT_FUNCTIONS = "Functions that only cProfile recorded are not on the timeline. The table of functions lists them, and the flame graph shows them with the source “Python by cProfile”."

/** The search box of the report: what matches is selected in all views and traces. */
export class SearchView extends PanelView {
  declare model: Search

  protected readonly css = BAR_CSS + STEPS_CSS + SHEET_CSS + SEARCH_CSS
  private box: HTMLInputElement
  private regex: HTMLButtonElement
  private as_regex = false
  private result: HTMLElement
  private steps: InstanceSteps
  private sheet: KeySheet
  /** What matched in each trace; null where nothing is searched for. */
  private matches: Matches[] | null = null
  /** The names of what matched and has no events. */
  private functions = new Set<string>()
  private readonly report_key = (event: KeyboardEvent): void => this.on_report_key(event)

  private get stores(): TraceStore[] {
    return this.store.linked.stores
  }

  override async lazy_initialize(): Promise<void> {
    await super.lazy_initialize()
    await Promise.all(this.stores.map(({ready}) => ready))
  }

  override connect_signals(): void {
    super.connect_signals()
    for (const store of this.stores) {
      this.connect(store.properties.window.change, () => this.show_totals())
      this.connect(store.selection_changed, () => this.follow_selection())
    }
    this.connect(this.store.was_reset, () => this.clear())
    this.connect(this.store.keys_called, () => this.sheet.open())
    this.connect(this.store.properties.search.change, () => this.follow_search())
  }

  override after_render(): void {
    super.after_render()
    this.root.el.addEventListener("keydown", this.report_key)
  }

  override remove(): void {
    this.root.el.removeEventListener("keydown", this.report_key)
    super.remove()
  }

  protected build_content(): Node[] {
    this.box = element("input", {
      type: "search", placeholder: "Search all names", "aria-label": "Search", "aria-keyshortcuts": "/", size: 28, spellcheck: "false",
      title: "Names of ops, kernels, copies, runtime calls, modules, lines and functions (/). Enter goes to the next match, Shift + Enter to the previous one.",
    })
    this.box.addEventListener("input", () => this.light())
    this.box.addEventListener("keydown", (event) => this.on_box_key(event))
    this.regex = regex_button("search", (as_regex) => {
      this.as_regex = as_regex
      this.light()
    })
    this.result = element("span", {class: "number muted", role: "status", "aria-label": "Search result"})
    this.steps = new InstanceSteps(this.store)
    this.steps.update(false)
    const row = element("div", {class: "row", role: "group", "aria-label": "Search and its result"}, element("kbd", {"aria-hidden": "true"}, "/"), this.box, this.regex, this.steps.el, this.result)
    this.sheet = new KeySheet(this.store.keyed_views)
    return [row, this.sheet.el]
  }

  /** What is searched for; a regular expression stands between slashes. */
  private get text(): string {
    const {value} = this.box
    return this.as_regex && value != "" ? `/${value}/` : value
  }

  private write(text: string): void {
    this.as_regex = text.length > 2 && text.startsWith("/") && text.endsWith("/")
    this.regex.setAttribute("aria-pressed", String(this.as_regex))
    this.box.value = this.as_regex ? text.slice(1, -1) : text
  }

  /** Searches for what was set in Python. */
  private follow_search(): void {
    if (this.store.search != this.text) {
      this.write(this.store.search)
      this.light()
    }
  }

  /** A search that the reader goes back to stands in the box again. */
  private follow_selection(): void {
    const selections = this.stores.map(({selection}) => selection?.source == "search" ? selection : null)
    const key = selections.find((selection) => selection != null)?.key
    if (key != null && key != this.text) {
      this.write(key)
      this.store.search = key
      this.matches = selections.map((selection) => ({rows: selection?.rows ?? new Int32Array(0), labels: selection?.labels ?? new Set()}))
      this.functions = this.matching_functions()
      this.show_totals()
    }
    this.steps.update(this.has_steps)
  }

  private get is_lit(): boolean {
    return this.stores.some(({selection}) => selection?.source == "search")
  }

  /** With several traces there are no details of the selection that would have the steps. */
  private get has_steps(): boolean {
    return this.is_lit || this.stores.length > 1 && !this.stores.some(({selection}) => selection?.source == "timeline")
  }

  /** Whether any event matches; functions that cProfile alone knows have none. */
  private get has_events(): boolean {
    return this.matches?.some(({rows}) => rows.length > 0) ?? false
  }

  private get matcher(): Matcher {
    return matcher(this.box.value, this.as_regex)
  }

  private matching_functions(): Set<string> {
    const {test} = this.matcher
    return new Set(this.stores.flatMap(({data}) => [...matching_calls(data, test)]))
  }

  /** Selects what matches, in all traces; the view stays where it is. Where nothing matches, there is nothing to tell apart. */
  private light(): void {
    const {value} = this.box
    const {test, error} = this.matcher
    this.store.search = this.text
    this.matches = value == "" || error != null ? null : this.stores.map(({data}) => search(data, test))
    this.functions = this.matches == null ? new Set() : this.matching_functions()
    if (this.matches != null && (this.has_events || this.functions.size > 0)) {
      const key = this.text
      this.store.linked.choose(this.matches.map(({rows, labels}) =>
        ({source: "search", row: -1, rows, key, labels, text: `“${value}”`, matches: test})))
    } else if (this.is_lit) {
      this.store.linked.choose(this.stores.map(() => null))
    }
    this.show_totals()
  }

  private light_again(): void {
    if (this.matches != null && !this.is_lit) {
      this.light()
    }
  }

  private clear(): void {
    this.box.value = ""
    this.light()
  }

  private show_totals(): void {
    this.result.textContent = this.matcher.error ?? this.totals_text()
    const has_functions = this.functions.size > 0
    this.result.title = [...this.has_events ? [ABOUT] : [], ...has_functions ? [ABOUT_FUNCTIONS] : []].join(" ")
  }

  private totals_text(): string {
    const {stores, matches} = this
    if (matches == null) {
      return ""
    }
    const {size} = this.functions
    if (size > 0 && stores.every(({data}) => data.rows == 0)) {
      return format_count(size, "function") // there is no timeline
    }
    const whole = sum_of_totals(stores.map(({data}, i) => match_totals(data, matches[i].rows, data.whole)))
    const is_ranged = stores.some(({window}) => window != null)
    const range = is_ranged ? sum_of_totals(stores.map(({data, range}, i) => match_totals(data, matches[i].rows, range))) : null
    return match_text(range, whole, size)
  }

  private on_box_key(event: KeyboardEvent): void {
    if (event.key == "Enter" && !event.isComposing) {
      this.light_again()
      if (this.functions.size > 0 && !this.has_events) {
        this.store.functions_called.emit("")
      } else {
        step_instance(this.store, event.shiftKey ? -1 : 1)
      }
    } else if (event.key == "Escape" && this.box.value != "") {
      this.clear()
    } else {
      return
    }
    event.preventDefault()
    event.stopPropagation()
  }

  /** Handles the keys that work wherever the focus is in the report, except where they are text. */
  private on_report_key(event: KeyboardEvent): void {
    const [target] = event.composedPath()
    const is_text = target instanceof Element && target.matches(TEXT)
    if (is_text || event.defaultPrevented || !is_plain(event) || !(event.key in this.report_keys)) {
      return
    }
    event.preventDefault()
    event.stopPropagation()
    this.report_keys[event.key]()
  }

  private readonly report_keys: Record<string, () => void> = {
    "/": () => {
      this.box.focus()
      this.box.select()
    },
    ",": () => step_instance(this.store, -1),
    ".": () => step_instance(this.store, 1),
    "?": () => this.sheet.open(),
  }
}

export class Search extends Panel {
  static {
    this.prototype.default_view = SearchView
  }
}

const SEARCH_CSS = `
.row { min-height: 26px; }
.number { white-space: normal; }
`
