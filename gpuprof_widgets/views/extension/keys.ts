/** The keys and gestures of the report, for the sheet that lists them. What they do is in the views. */

/** What has keys of its own; those of the report work everywhere in it. */
export type KeyedView = "report" | "timeline" | "flame graph" | "memory"

type KeySection = {title: string, view: KeyedView, entries: [text: string, ...keys: string[]][]}

export const KEYS: KeySection[] = [
  {title: "Everywhere", view: "report", entries: [
    ["Search all names; Enter goes to the next match, Shift + Enter to the previous one", "/"],
    ["Go to the next or previous selected event", ".", ","],
    ["Clear the selection, then the range, then zoom and critical path; then leave the report", "Esc"],
    ["Go back to the previous selection, range and view", "Backspace", "Ctrl + Z"],
    ["List all keys", "?"],
  ]},
  {title: "Timeline", view: "timeline", entries: [
    ["Select a time range; lines, flame graph and tables then count only that range", "drag"],
    ["Move along the timeline", "←", "→", "a", "d", "Shift + drag", "Shift + wheel"],
    ["Zoom; the wheel alone scrolls the tracks", "+", "−", "w", "s", "Ctrl + wheel"],
    ["Show the whole trace", "0", "Home"],
    ["Scroll the tracks", "↑", "↓", "Page Up", "Page Down"],
    ["Select an event", "click"],
    ["Select the event in the middle of the view", "Enter"],
    ["Go to the previous or next event in the same row", "Shift + ←", "Shift + →"],
    ["Go to the event that contains the selected one, or to the first one inside it", "Shift + ↑", "Shift + ↓"],
    ["Zoom to the selected event or range", "f", "double click"],
    ["Make the selected event's time the range, or the visible time", "r"],
    ["Show or hide the critical path, if it is known", "c"],
    ["On a track's name: fold or unfold the track", "click", "Enter"],
    ["On a track's name: go to the name of another track", "↑", "↓", "Home", "End"],
  ]},
  {title: "Flame graph", view: "flame graph", entries: [
    ["Zoom to a bar and select its calls", "click", "Enter"],
    ["Go to another bar", "↓", "↑", "←", "→"],
    ["Zoom out to the root", "Home"],
    ["Switch between bottom up (functions and ops by self time, with their callers) and top down", "i"],
  ]},
  {title: "Memory", view: "memory", entries: [
    ["Select a block", "click"],
    ["Select the next bigger or smaller block of the range", "↑", "↓"],
    ["Select the biggest block that was alive at the peak", "p"],
    ["Zoom to the selected block", "f"],
  ]},
  {title: "Tables", view: "report", entries: [
    ["Sort by a column", "click on its heading", "Enter"],
    ["Select the events of a row", "click", "Enter"],
    ["Go to another row", "↑", "↓", "Home", "End"],
  ]},
]
