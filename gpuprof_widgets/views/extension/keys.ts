/** The keys and gestures of the report, for the sheet that lists them. What they do is in the views. */

/** What has keys of its own; those of the report work everywhere in it. */
export type KeyedView = "report" | "timeline" | "flame graph" | "memory"

/** `keys`: as they are shown; `press`: the key that does it in the view, where it needs no pointer and no row. */
export type KeyEntry = {text: string, keys: string[], press?: {key: string, shiftKey?: boolean}}

export type KeySection = {title: string, view: KeyedView, entries: KeyEntry[]}

export const KEYS: KeySection[] = [
  {title: "Everywhere", view: "report", entries: [
    {text: "Search all names; Enter goes to the next match, Shift + Enter to the previous one", keys: ["/"], press: {key: "/"}},
    {text: "Next of the selected events", keys: ["."], press: {key: "."}},
    {text: "Previous of the selected events", keys: [","], press: {key: ","}},
    {text: "End a measurement; then clear the selection; then the range; then zooms and the critical path", keys: ["Esc"], press: {key: "Escape"}},
    {text: "Go back to what was selected, in range and in view before", keys: ["Backspace", "Ctrl + Z"], press: {key: "Backspace"}},
    {text: "Go forward again", keys: ["Shift + Backspace", "Ctrl + Shift + Z"], press: {key: "Backspace", shiftKey: true}},
    {text: "List all keys and commands", keys: ["?"]},
  ]},
  {title: "Timeline", view: "timeline", entries: [
    {text: "Select a time range: lines, flame graph and tables show that range alone", keys: ["drag"]},
    {text: "Move along the timeline", keys: ["Shift + drag", "Shift + wheel"]},
    {text: "Zoom at the pointer; the plain wheel scrolls the tracks", keys: ["Ctrl + wheel"]},
    {text: "Select an event; zoom to it", keys: ["click", "double click"]},
    {text: "Move left", keys: ["←", "a"], press: {key: "ArrowLeft"}},
    {text: "Move right", keys: ["→", "d"], press: {key: "ArrowRight"}},
    {text: "Zoom in", keys: ["+", "w"], press: {key: "+"}},
    {text: "Zoom out", keys: ["−", "s"], press: {key: "-"}},
    {text: "Show the whole trace", keys: ["0", "Home"], press: {key: "0"}},
    {text: "Scroll the tracks up", keys: ["↑", "Page Up"], press: {key: "ArrowUp"}},
    {text: "Scroll the tracks down", keys: ["↓", "Page Down"], press: {key: "ArrowDown"}},
    {text: "Select the event in the middle of the view", keys: ["Enter"], press: {key: "Enter"}},
    {text: "Previous event on the selected event's row", keys: ["Shift + ←"], press: {key: "ArrowLeft", shiftKey: true}},
    {text: "Next event on the selected event's row", keys: ["Shift + →"], press: {key: "ArrowRight", shiftKey: true}},
    {text: "The event that contains the selected one", keys: ["Shift + ↑"], press: {key: "ArrowUp", shiftKey: true}},
    {text: "The first event inside the selected one", keys: ["Shift + ↓"], press: {key: "ArrowDown", shiftKey: true}},
    {text: "Zoom to the selected event or range", keys: ["f"], press: {key: "f"}},
    {text: "Make the selected event's time the range, or the measured time, or the visible time", keys: ["r"], press: {key: "r"}},
    {text: "Measure between two points; on a selected event from or to its start", keys: ["m"], press: {key: "m"}},
    {text: "Measure from or to the end of the selected event", keys: ["Shift + M"], press: {key: "M", shiftKey: true}},
    {text: "Show or hide the critical path, where it is known", keys: ["c"], press: {key: "c"}},
    {text: "Find a track by its name, where there are many", keys: ["t"], press: {key: "t"}},
  ]},
  {title: "The name of a track", view: "timeline", entries: [
    {text: "Fold or unfold the track", keys: ["click", "Enter"]},
    {text: "Move the track", keys: ["drag", "Alt + ↑", "Alt + ↓"]},
    {text: "Pin the track to the top, or take the pin away", keys: ["p"]},
    {text: "Hide the track", keys: ["h"]},
    {text: "Open the track's menu", keys: ["→", "right click"]},
    {text: "The name of another track", keys: ["↑", "↓", "Home", "End"]},
  ]},
  {title: "Flame graph", view: "flame graph", entries: [
    {text: "Zoom to a bar and select its calls", keys: ["click"]},
    {text: "Zoom at the pointer; move", keys: ["Ctrl + wheel", "Shift + wheel"]},
    {text: "The first call inside", keys: ["↓"], press: {key: "ArrowDown"}},
    {text: "The call around", keys: ["↑"], press: {key: "ArrowUp"}},
    {text: "The call on the left", keys: ["←"], press: {key: "ArrowLeft"}},
    {text: "The call on the right", keys: ["→"], press: {key: "ArrowRight"}},
    {text: "Zoom to the bar", keys: ["Enter"], press: {key: "Enter"}},
    {text: "Zoom in by a little", keys: ["+"], press: {key: "+"}},
    {text: "Zoom out by a little", keys: ["−"], press: {key: "-"}},
    {text: "Zoom out to the root", keys: ["Home"], press: {key: "Home"}},
    {text: "Bottom up: functions and ops by self time, with their callers; or top down again", keys: ["i"], press: {key: "i"}},
    {text: "Sandwich: the callers and callees of the bar's function or op", keys: ["s"], press: {key: "s"}},
  ]},
  {title: "Memory", view: "memory", entries: [
    {text: "Select a block", keys: ["click"]},
    {text: "The next bigger block of the range", keys: ["↑"], press: {key: "ArrowUp"}},
    {text: "The next smaller block of the range", keys: ["↓"], press: {key: "ArrowDown"}},
    {text: "The biggest block that was alive at the peak", keys: ["p"], press: {key: "p"}},
    {text: "Zoom to the selected block", keys: ["f"], press: {key: "f"}},
  ]},
  {title: "Tables", view: "report", entries: [
    {text: "Sort by a column", keys: ["click on its heading", "Enter"]},
    {text: "Select the events of a row", keys: ["click", "Enter"]},
    {text: "Another row", keys: ["↑", "↓", "Home", "End"]},
  ]},
]
