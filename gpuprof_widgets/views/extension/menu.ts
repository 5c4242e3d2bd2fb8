import {element} from "./element"
import {scroll_port} from "./scroll_port"

/** An entry of a menu; `keys`: the ones that do the same without it. */
export type MenuItem = {text: string, keys: string, disabled?: boolean, run: () => void}

/** A menu next to what it is about. It floats over the report: nothing moves when it opens. */
export class Menu {
  private readonly el = element("div", {class: "gp-menu", role: "menu", hidden: true})
  private readonly style = element("style", {}, MENU_CSS)
  /** Takes the focus when the menu closes by a key or a choice. */
  private opener: HTMLElement | null = null

  constructor(private readonly host: HTMLElement, root: ShadowRoot | HTMLElement) {
    root.append(this.style, this.el)
    this.el.addEventListener("keydown", (event) => this.key(event))
    this.el.addEventListener("focusout", (event) => {
      if (!(event.relatedTarget instanceof Node && this.el.contains(event.relatedTarget))) {
        this.el.hidden = true
      }
    })
  }

  remove(): void {
    this.el.remove()
    this.style.remove()
  }

  open(label: string, items: MenuItem[], opener: HTMLElement): void {
    this.opener = opener
    this.el.setAttribute("aria-label", label)
    this.el.replaceChildren(...items.map((item) => this.entry(item)))
    this.el.hidden = false
    this.place(opener.getBoundingClientRect())
    this.focus(0)
  }

  private entry({text, keys, disabled = false, run}: MenuItem): HTMLElement {
    const attributes = {role: "menuitem", tabindex: -1, "aria-disabled": disabled ? "true" : null}
    const el = element("div", attributes, text, element("kbd", {"aria-hidden": "true"}, keys))
    el.addEventListener("click", () => {
      if (!disabled) {
        this.close()
        run()
      }
    })
    el.addEventListener("pointermove", () => el.focus({preventScroll: true}))
    return el
  }

  private get entries(): HTMLElement[] {
    return [...this.el.children] as HTMLElement[]
  }

  private focus(at: number): void {
    const {entries} = this
    entries[(at + entries.length) % entries.length].focus({preventScroll: true})
  }

  private close(): void {
    this.opener?.focus({preventScroll: true})
    this.el.hidden = true
  }

  /** Puts the menu below its opener, above where the screen ends. */
  private place({left, top, bottom}: DOMRect): void {
    const host = this.host.getBoundingClientRect()
    const {height} = this.el.getBoundingClientRect()
    const fits = bottom + height <= Math.min(host.bottom, scroll_port(this.el).bottom)
    this.el.style.left = `${Math.max(0, left - host.left)}px`
    this.el.style.top = `${(fits ? bottom : top - height) - host.top}px`
  }

  private key(event: KeyboardEvent): void {
    const {entries} = this
    const at = entries.findIndex((el) => el.matches(":focus"))
    switch (event.key) {
      case "ArrowDown": this.focus(at + 1); break
      case "ArrowUp": this.focus(at - 1); break
      case "Home": this.focus(0); break
      case "End": this.focus(-1); break
      case "Enter": case " ": entries[at]?.click(); break
      case "Escape": case "ArrowLeft": case "Tab": this.close(); break
    }
    event.preventDefault()
    event.stopPropagation()
  }
}

const MENU_CSS = `
.gp-menu {
  position: absolute; z-index: 20; box-sizing: border-box; min-width: 180px; padding: 4px; border-radius: 5px;
  border: 1px solid var(--gp-edge, #949494); background: var(--gp-background, #fff); color: var(--gp-foreground, #212121);
  font: 12px/1.4 var(--jp-ui-font-family, system-ui, sans-serif); box-shadow: 0 2px 8px rgb(0 0 0 / 25%);
}
.gp-menu[hidden] { display: none; }
.gp-menu [role=menuitem] { display: flex; justify-content: space-between; gap: 20px; padding: 3px 8px; border-radius: 3px; cursor: pointer; }
.gp-menu [role=menuitem]:focus { outline: none; background: var(--gp-accent, #005ea2); color: var(--gp-background, #fff); }
.gp-menu [aria-disabled] { color: var(--gp-muted, #595959); cursor: default; }
.gp-menu [role=menuitem][aria-disabled]:focus { background: var(--gp-band, #eee); color: var(--gp-muted, #595959); }
.gp-menu kbd { font: 11px ui-monospace, monospace; }
`
