type Attributes = Record<string, string | number | boolean | null>

/** Makes an element. Children that are strings become text nodes: a name from a trace is never markup. */
export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K, attributes: Attributes = {}, ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const el = document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) {
      el.setAttribute(name, "")
    } else if (value !== false && value != null) {
      el.setAttribute(name, String(value))
    }
  }
  el.append(...children)
  return el
}

export function button(text: string, attributes: Attributes, on_click: (event: MouseEvent) => void): HTMLButtonElement {
  const el = element("button", {type: "button", ...attributes}, text)
  el.addEventListener("click", on_click)
  return el
}

/** A labelled choice among a few values. */
export function choice(label: string, options: [string, string][], value: string, on_change: (value: string) => void): HTMLLabelElement {
  const select = element("select", {}, ...options.map(([key, text]) =>
    element("option", {value: key, selected: key == value}, text)))
  select.addEventListener("change", () => on_change(select.value))
  return element("label", {class: "choice"}, `${label} `, select)
}
