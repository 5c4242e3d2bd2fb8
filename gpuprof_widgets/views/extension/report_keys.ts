/** Whose the keys are: the report's while it has the focus, which a press gives to it and Escape takes away. */

import type {Journal} from "./journal"
import {listen_weakly} from "./weak_listener"

/** Boxes in which keys are text. */
export const TEXT = "input:not([type=checkbox]), select, textarea, [contenteditable]"

/** Cells of JupyterLab and of Notebook, which take the focus back; elsewhere whatever around the report can. */
const CELLS = ".jp-Cell[tabindex], .cell[tabindex]"

/** By this attribute JupyterLab knows what keeps keys; in its earlier versions it looks before the report hears of a key. */
const KEEPS = "data-lm-suppress-shortcuts"

/** Keys that edit text together with Ctrl or Cmd. */
const EDITS = /^([acvxyz]|backspace|delete|home|end|arrow\w+)$/i

/** Whether a key has no modifier but Shift. */
export function is_plain({ctrlKey, metaKey, altKey}: KeyboardEvent): boolean {
  return !ctrlKey && !metaKey && !altKey
}

/** Has a report keep its keys from what is around it, and undo by them; `journal`: of its views, where it has ours. */
export function hold_keys(report: HTMLElement, journal: Journal | null = null): void {
  report.tabIndex = -1
  report.setAttribute("role", "group")
  report.setAttribute("aria-label", "Profile report")
  const hold = (): void => report.matches(":focus-within") ? undefined : report.focus({preventScroll: true})
  report.addEventListener("mousedown", hold, true) // what can take the focus itself does so next
  report.addEventListener("focusout", (event) => {
    const el = target_of(event)
    const is_gone = (): boolean => event.relatedTarget == null && !el.checkVisibility({visibilityProperty: true})
    queueMicrotask(() => is_gone() ? hold() : undefined)
  })
  report.addEventListener("keydown", (event) => on_key(report, journal, event))
  listen_weakly(window, "keydown", report, mark, true)
}

function mark(report: HTMLElement, event: Event): void {
  report.toggleAttribute(KEEPS, is_ours(event as KeyboardEvent))
}

/** Handles the keys that undo; returns false for other keys, and where there is nothing to undo. */
function undo_key(journal: Journal, event: KeyboardEvent): boolean {
  const {key, ctrlKey, metaKey, altKey} = event
  switch (key) {
    case "Escape": return is_plain(event) && journal.clear_next()
    case "Backspace": return is_plain(event) && journal.back()
    case "z": return (ctrlKey || metaKey) && !altKey && journal.back()
    default: return false
  }
}

function on_key(report: HTMLElement, journal: Journal | null, event: KeyboardEvent): void {
  const is_free = !event.defaultPrevented && !keeps(event)
  if (is_free && journal != null && undo_key(journal, event)) {
    event.preventDefault()
  } else if (is_free && event.key == "Escape") {
    leave(report)
  }
  if (is_ours(event)) {
    event.stopPropagation()
  }
}

/** Whatever has Ctrl, Cmd or Alt is the notebook's or the browser's, but for the keys that undo and those that edit text. */
function is_ours(event: KeyboardEvent): boolean {
  const {key, altKey} = event
  return is_plain(event) || !altKey && (key.toLowerCase() == "z" || EDITS.test(key) && target_of(event).matches(TEXT))
}

/** Whether an element makes use of a key that undoes: a dialog, a text box with text, of other keys than Escape any field. */
function keeps(event: KeyboardEvent): boolean {
  const el = target_of(event)
  const is_filled = el instanceof HTMLInputElement && el.type == "search" && el.value != ""
  return el.closest("dialog") != null || is_filled || event.key != "Escape" && el.matches("input, select, textarea")
}

/** The element that has the focus, in whatever shadow tree; the page's for an event sent to its document or window. */
function target_of(event: Event): Element {
  const [first] = event.composedPath()
  return first instanceof Element ? first : document.documentElement
}

/** Gives the focus back to the cell that the report stands in. */
function leave(report: HTMLElement): void {
  const around = report.parentElement
  const cell = around?.closest<HTMLElement>(CELLS) ?? around?.closest<HTMLElement>("[tabindex]")
  report.focus({preventScroll: true})
  report.blur()
  cell?.focus({preventScroll: true})
}
