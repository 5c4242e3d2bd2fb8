import {element, regex_button} from "./element"
import {matcher} from "./engine"

/** A search box that filters rows by their texts, with a button that reads it as a regular expression. */
export class RowFilter {
  private readonly box = element("input", {type: "search", placeholder: "Filter rows", "aria-label": "Filter rows", size: 18})
  private readonly regex = regex_button("filter", (as_regex) => {
    this.as_regex = as_regex
    this.change()
  })
  readonly els = [this.box, this.regex]
  private as_regex = false
  private matcher = matcher("", false)

  constructor(private readonly changed: () => void) {
    this.box.addEventListener("input", () => this.change())
  }

  private change(): void {
    this.read()
    this.changed()
  }

  private read(): void {
    this.matcher = matcher(this.box.value, this.as_regex)
  }

  clear(): void {
    this.box.value = ""
    this.read()
  }

  /** What is wrong with the pattern; null where nothing is. */
  get error(): string | null {
    return this.matcher.error
  }

  /** Whether rows may be left out; a pattern that is none lets all pass. */
  get is_on(): boolean {
    return this.box.value != "" && this.error == null
  }

  test(text: string): boolean {
    return this.matcher.test(text)
  }
}
