/** The keys and gestures of the report, for the sheet that lists them. What they do is in the views. */

/** What has keys of its own; those of the report work everywhere in it. */
export type KeyedView = "report" | "timeline" | "flame graph" | "memory"

/** `keys`: as they are shown; `press`: the key that does it in the view, where it needs no pointer and no row. */
export type KeyEntry = {text: string, keys: string[], press?: {key: string, shiftKey?: boolean}}

export type KeySection = {title: string, view: KeyedView, entries: KeyEntry[]}

export const KEYS: KeySection[] = [
  {title: "Everywhere", view: "report", entries: [
    {text: "Search all names; Enter goes to the next match, Shift + Enter to the previous one", keys: ["/"], press: {key: "/"}},
    {text: "Go to the next selected event", keys: ["."], press: {key: "."}},
    {text: "Go to the previous selected event", keys: [","], press: {key: ","}},
    {text: "End a measurement, then clear the selection, then the range, then zoom and critical path; then leave the report", keys: ["Esc"], press: {key: "Escape"}},
    {text: "Go back to the previous selection, range and view", keys: ["Backspace", "Ctrl + Z"], press: {key: "Backspace"}},
    {text: "Go forward again", keys: ["Shift + Backspace", "Ctrl + Shift + Z"], press: {key: "Backspace", shiftKey: true}},
    {text: "List all keys and commands", keys: ["?"]},
  ]},
  {title: "Timeline", view: "timeline", entries: [
    {text: "Select a time range; lines, flame graph and tables then count only that range", keys: ["drag"]},
    {text: "Move along the timeline", keys: ["Shift + drag", "Shift + wheel"]},
    {text: "Zoom at the pointer; the wheel alone scrolls the tracks", keys: ["Ctrl + wheel"]},
    {text: "Select an event", keys: ["click"]},
    {text: "Zoom to an event", keys: ["double click"]},
    {text: "Move left", keys: ["←", "a"], press: {key: "ArrowLeft"}},
    {text: "Move right", keys: ["→", "d"], press: {key: "ArrowRight"}},
    {text: "Zoom in", keys: ["+", "w"], press: {key: "+"}},
    {text: "Zoom out", keys: ["−", "s"], press: {key: "-"}},
    {text: "Show the whole trace", keys: ["0", "Home"], press: {key: "0"}},
    {text: "Scroll the tracks up", keys: ["↑", "Page Up"], press: {key: "ArrowUp"}},
    {text: "Scroll the tracks down", keys: ["↓", "Page Down"], press: {key: "ArrowDown"}},
    {text: "Select the event in the middle of the view", keys: ["Enter"], press: {key: "Enter"}},
    {text: "Go to the previous event in the same row", keys: ["Shift + ←"], press: {key: "ArrowLeft", shiftKey: true}},
    {text: "Go to the next event in the same row", keys: ["Shift + →"], press: {key: "ArrowRight", shiftKey: true}},
    {text: "Go to the event that contains the selected one", keys: ["Shift + ↑"], press: {key: "ArrowUp", shiftKey: true}},
    {text: "Go to the first event inside the selected one", keys: ["Shift + ↓"], press: {key: "ArrowDown", shiftKey: true}},
    {text: "Zoom to the selected event or range", keys: ["f"], press: {key: "f"}},
    {text: "Make the measured time the range, or the selected event's time, or the visible time", keys: ["r"], press: {key: "r"}},
    {text: "Measure between two points (with an event selected: from or to its start)", keys: ["m"], press: {key: "m"}},
    {text: "Measure from or to the end of the selected event", keys: ["Shift + M"], press: {key: "M", shiftKey: true}},
    {text: "Show or hide the critical path, if it is known", keys: ["c"], press: {key: "c"}},
    {text: "Find a track by its name (with eight tracks or more)", keys: ["t"], press: {key: "t"}},
  ]},
  {title: "Track names", view: "timeline", entries: [
    {text: "Fold or unfold the track", keys: ["click", "Enter"]},
    {text: "Move the track", keys: ["drag", "Alt + ↑", "Alt + ↓"]},
    {text: "Pin the track to the top, or unpin it", keys: ["p"]},
    {text: "Hide the track", keys: ["h"]},
    {text: "Open the track's menu", keys: ["→", "right click"]},
    {text: "Go to the name of another track", keys: ["↑", "↓", "Home", "End"]},
  ]},
  {title: "Flame graph", view: "flame graph", entries: [
    {text: "Zoom to a bar and select its calls", keys: ["click"]},
    {text: "Zoom at the pointer", keys: ["Ctrl + wheel"]},
    {text: "Move left or right", keys: ["Shift + wheel"]},
    {text: "Go to the bar below", keys: ["↓"], press: {key: "ArrowDown"}},
    {text: "Go to the bar above", keys: ["↑"], press: {key: "ArrowUp"}},
    {text: "Go to the bar on the left", keys: ["←"], press: {key: "ArrowLeft"}},
    {text: "Go to the bar on the right", keys: ["→"], press: {key: "ArrowRight"}},
    {text: "Zoom to the bar", keys: ["Enter"], press: {key: "Enter"}},
    {text: "Zoom in a little", keys: ["+"], press: {key: "+"}},
    {text: "Zoom out a little", keys: ["−"], press: {key: "-"}},
    {text: "Zoom out to the root", keys: ["Home"], press: {key: "Home"}},
    {text: "Switch between bottom up (functions and ops by self time, with their callers) and top down", keys: ["i"], press: {key: "i"}},
    {text: "Sandwich: the callers and callees of the bar's function or op", keys: ["s"], press: {key: "s"}},
  ]},
  {title: "Memory", view: "memory", entries: [
    {text: "Select a block", keys: ["click"]},
    {text: "Select the next bigger block of the range", keys: ["↑"], press: {key: "ArrowUp"}},
    {text: "Select the next smaller block of the range", keys: ["↓"], press: {key: "ArrowDown"}},
    {text: "Select the biggest block that was alive at the peak", keys: ["p"], press: {key: "p"}},
    {text: "Zoom to the selected block", keys: ["f"], press: {key: "f"}},
  ]},
  {title: "Tables", view: "report", entries: [
    {text: "Sort by a column", keys: ["click on its heading", "Enter"]},
    {text: "Select the events of a row", keys: ["click", "Enter"]},
    {text: "Go to another row", keys: ["↑", "↓", "Home", "End"]},
  ]},
]
