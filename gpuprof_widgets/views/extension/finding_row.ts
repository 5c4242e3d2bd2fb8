import {button, element, with_code} from "./element"
import {cell_text, format_ns, format_share} from "./engine"
import type {FindingLine} from "./report_state"
import {has_evidence} from "./selection"

/** What the buttons of a row do. */
export type Actions = {show: (finding: FindingLine) => void, show_line: (finding: FindingLine) => void}

/** How the rows begin: with the first one unfolded, with a column of costs. */
export type Look = {is_open: boolean, has_costs: boolean}

let last_id = 0

/** Returns a finding as a row: what it costs and its title, which unfold the sentence and the remedy, and a button that shows it. */
export function finding_row(finding: FindingLine, actions: Actions, {is_open, has_costs}: Look): HTMLLIElement {
  const {title} = finding
  const words = words_of(finding, actions)
  const head = [...has_costs ? [cost(finding)] : [], element("span", {class: "title"}, ...with_code(title))]
  const mark = element("span", {class: "mark", "aria-hidden": "true"})
  const folded = words.length == 0 ? element("div", {class: "head"}, mark, ...head) : element("button", {type: "button", class: "head"}, mark, ...head)
  const item = element("li", finding.is_part == true ? {class: "part"} : {}, folded)
  if (has_evidence(finding) || finding.function != "") {
    const about = has_evidence(finding) ? "Zoom to the time range and highlight the events that this is about"
      : "Select the function in the table of functions"
    item.append(button("show", {title: about, "aria-label": `show: ${title}`}, () => actions.show(finding)))
  }
  if (words.length > 0) {
    item.append(unfolded_by(folded, words, is_open))
  }
  return item
}

/** The sentence, the remedy and the line to look at; nothing where the title says it all. */
function words_of(finding: FindingLine, {show_line}: Actions): HTMLElement[] {
  const {text, remedy, line, look_at} = finding
  const about = "Highlight this line in the lines view and on the timeline"
  const link = line < 0 ? null : element("button", {type: "button", class: "link", title: about}, ...with_code(look_at))
  link?.addEventListener("click", () => show_line(finding))
  return [
    ...text == "" ? [] : [element("p", {}, ...with_code(text))],
    ...remedy == "" ? [] : [element("p", {class: "remedy"}, ...with_code(remedy))],
    ...link == null ? [] : [element("p", {}, link)],
  ]
}

/** Returns the words of a row, which its head unfolds. */
function unfolded_by(head: HTMLElement, texts: HTMLElement[], is_open: boolean): HTMLElement {
  const words = element("div", {class: "words", id: `finding-${++last_id}`}, ...texts)
  head.setAttribute("aria-controls", words.id)
  const set = (open: boolean): void => {
    head.setAttribute("aria-expanded", String(open))
    words.hidden = !open
  }
  head.addEventListener("click", () => set(words.hidden))
  set(is_open)
  return words
}

/** The cost as a bar, as long as its share of the time, with its figures; nothing where it costs nothing. */
function cost({cost, share}: FindingLine): HTMLElement {
  const cell = element("span", {class: "cost number"})
  if (cost > 0) {
    const bar = element("span", {class: "track"}, element("span", {class: "bar", style: `width:${(100 * Math.min(share, 1)).toFixed(1)}%`}))
    cell.append(bar, element("span", {class: "time"}, format_ns(cost)), share_element(share))
  }
  return cell
}

/** The share in as few letters as in a table, as the column is narrow; a screen reader gets the words. */
function share_element(share: number): HTMLElement {
  const [words, text] = share > 0 ? [format_share(share), cell_text(share, "share")] : ["", ""]
  return element("span", {class: "share", ...text == words ? {} : {"role": "img", "aria-label": words}}, text)
}

export const FINDINGS_CSS = `
.findings { list-style: none; margin: 6px 0 0; max-width: 1000px; }
.findings li { display: flex; flex-wrap: wrap; align-items: center; gap: 0 6px; border-bottom: 1px solid var(--line); }
.findings li:first-child { border-top: 1px solid var(--line); }
.findings .head {
  flex: 1 1 0; min-width: 0; display: flex; align-items: center; gap: 8px; min-height: 24px; padding: 0 4px;
  border: 0; border-radius: 0; background: none; text-align: left;
}
.findings button.head:hover { background: var(--band); }
.findings button.head:focus-visible { outline-offset: -2px; }
.findings button:not(.head, .link) { flex: none; padding: 0 8px; font-size: 12px; line-height: 18px; }
.findings .mark { flex: none; width: 0; height: 0; border: 4px solid transparent; border-left: 5px solid transparent; border-right-width: 0; }
.findings button .mark { border-left-color: var(--muted); }
.findings [aria-expanded=true] .mark { transform: rotate(90deg); }
.cost { flex: none; display: grid; grid-template-columns: 64px 58px 52px; align-items: center; gap: 6px; }
.cost > .time, .cost > .share { text-align: right; }
.cost > .share { color: var(--muted); }
.track { height: 9px; border: 1px solid var(--edge); border-radius: 2px; background: var(--bg); overflow: hidden; }
.bar { display: block; height: 100%; min-width: 1px; background: var(--accent); }
.findings .title { min-width: 0; overflow-wrap: anywhere; line-height: 1.3; padding: 2px 0; }
.findings .part .title { padding-left: 18px; text-indent: -12px; }
.findings .part .title::before { content: "↳ "; color: var(--muted); }
.findings code { font: 12px var(--mono); }
.words { flex: 0 1 100%; padding: 1px 8px 6px 21px; }
.words[hidden] { display: none; }
.words p { max-width: 76em; overflow-wrap: anywhere; }
.link { border: 0; padding: 0; background: none; color: var(--accent); text-align: left; text-decoration: underline; text-underline-offset: 2px; }
.link:hover:not(:disabled) { background: none; text-decoration-thickness: 2px; }
@media (max-width: 640px) { .cost { grid-template-columns: 0 54px 52px; } .track { visibility: hidden; } }
`
