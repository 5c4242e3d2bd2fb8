import {button, element} from "./element"
import {KEYS, type KeyEntry, type KeySection} from "./keys"
import type {TraceStore} from "./trace_store"

/** The sheet of all keys and gestures of the report: what needs no pointer can be run from it. */
export class KeySheet {
  private readonly box = element("input", {type: "search", placeholder: "Filter; Enter runs the first match", "aria-label": "Filter commands", size: 32})
  private readonly list = element("div", {class: "commands"})
  readonly el = element("dialog", {class: "sheet", "aria-label": "Keys and commands"},
    element("div", {class: "row"}, element("h3", {}, "Keys and commands"), this.box, button("Close", {class: "push"}, () => this.el.close())),
    this.list)

  /** `anywhere`: an element of the report that takes the keys that work everywhere. */
  constructor(private readonly store: TraceStore, private readonly anywhere: HTMLElement) {
    this.box.addEventListener("input", () => this.fill())
    this.el.addEventListener("keydown", (event) => this.key(event))
  }

  open(): void {
    this.box.value = ""
    this.fill()
    this.el.showModal()
    this.box.focus()
  }

  private fill(): void {
    const wanted = this.box.value.toLowerCase()
    this.list.replaceChildren(...KEYS.flatMap((section) => {
      const is_there = section.view == "report" || this.store.surfaces.has(section.view)
      const found = section.entries.filter(({text, keys}) => `${section.title} ${text} ${keys.join(" ")}`.toLowerCase().includes(wanted))
      const rows = found.map((entry) => element("li", {}, this.row_of(section, entry)))
      return is_there && rows.length > 0 ? [element("h4", {}, section.title), element("ul", {"aria-label": section.title}, ...rows)] : []
    }))
  }

  private row_of(section: KeySection, entry: KeyEntry): HTMLElement {
    const keys = element("span", {class: "keys"}, ...entry.keys.flatMap((alternative, i) => [
      ...i == 0 ? [] : [" or "],
      ...alternative.split(" + ").flatMap((key, i) => [...i == 0 ? [] : [" + "], element("kbd", {}, key)]),
    ]))
    const row = entry.press == null ? element("div", {class: "command"}, entry.text)
      : button(entry.text, {class: "command"}, () => this.run(section, entry))
    row.append(keys)
    return row
  }

  /** Presses a key in its view. */
  private run({view}: KeySection, {press}: KeyEntry): void {
    this.el.close()
    const target = view == "report" ? this.anywhere : this.store.surfaces.get(view)!
    if (view != "report") {
      target.focus()
    }
    target.dispatchEvent(new KeyboardEvent("keydown", {...press, bubbles: true, composed: true, cancelable: true}))
  }

  private get commands(): HTMLElement[] {
    return [...this.list.querySelectorAll<HTMLElement>("button")]
  }

  /** Enter in the box runs the first command; arrows walk. Escape closes, as in every dialog. */
  private key(event: KeyboardEvent): void {
    const {commands} = this
    const at = commands.findIndex((el) => el.matches(":focus"))
    if (event.key == "Enter" && this.box.matches(":focus")) {
      commands[0]?.click()
    } else if (event.key == "ArrowDown") {
      commands[Math.min(at + 1, commands.length - 1)]?.focus()
    } else if (event.key == "ArrowUp") {
      (at > 0 ? commands[at - 1] : this.box).focus()
    } else {
      event.stopPropagation()
      return
    }
    event.preventDefault()
    event.stopPropagation()
  }
}

export const SHEET_CSS = `
.sheet { width: 720px; max-width: 94vw; max-height: 84vh; padding: 10px 14px; }
.sheet .row { position: sticky; top: -10px; padding: 6px 0; background: var(--bg); }
.sheet h4 { margin: 8px 0 2px; }
.sheet ul { list-style: none; }
.command { display: flex; justify-content: space-between; gap: 16px; width: 100%; padding: 2px 6px; text-align: left; }
button.command { border: 0; }
.command .keys { flex: none; color: var(--muted); }
`
