import {button, element} from "./element"
import {KEYS, type KeyedView} from "./keys"

/** The sheet of all keys and gestures of the report. */
export class KeySheet {
  private readonly list = element("div", {})
  readonly el = element("dialog", {class: "sheet", "aria-label": "Keys"},
    element("div", {class: "row"}, element("h3", {}, "Keys"), button("Close", {class: "push"}, () => this.el.close())), this.list)

  /** `views`: those of the report that have keys of their own. */
  constructor(private readonly views: ReadonlySet<KeyedView>) {
    this.el.addEventListener("keydown", (event) => event.stopPropagation())
  }

  open(): void {
    this.list.replaceChildren(...KEYS.filter(({view}) => this.views.has(view)).flatMap(({title, entries}) => [
      element("h4", {}, title),
      element("ul", {"aria-label": title}, ...entries.map(([text, ...keys]) => element("li", {}, text, element("span", {class: "keys"}, ...keys_of(keys))))),
    ]))
    this.el.showModal()
  }
}

/** Each of some keys as such, "or" between them. */
function keys_of(keys: string[]): (Node | string)[] {
  return keys.flatMap((alternative, i) => [
    ...i == 0 ? [] : [" or "],
    ...alternative.split(" + ").flatMap((key, i) => [...i == 0 ? [] : [" + "], element("kbd", {}, key)]),
  ])
}

export const SHEET_CSS = `
.sheet { width: 720px; max-width: 94vw; max-height: 84vh; padding: 10px 14px; }
.sheet .row { position: sticky; top: -10px; padding: 6px 0; background: var(--bg); }
.sheet h4 { margin: 8px 0 2px; }
.sheet ul { list-style: none; }
.sheet li { display: flex; justify-content: space-between; gap: 16px; padding: 2px 6px; }
.sheet .keys { flex: none; color: var(--muted); }
`
