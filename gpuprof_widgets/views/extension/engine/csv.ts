/** Tables as CSV text for spreadsheets. */

/** How a cell begins that a spreadsheet may run, as in trace/writers/tables.py; and one that begins with an apostrophe of its own. */
const MARKED = /^['=+\-@\t\r\n＝＋－＠]/

/** RFC 4180; a text that a spreadsheet would take for a formula gets an apostrophe in front. */
export function to_csv(columns: readonly string[], rows: readonly (readonly (string | number)[])[]): string {
  return [columns, ...rows].map((row) => `${row.map(cell).join(",")}\r\n`).join("")
}

function cell(value: string | number): string {
  if (typeof value == "number") {
    return String(value)
  }
  const safe = MARKED.test(value) ? `'${value}` : value
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe
}
