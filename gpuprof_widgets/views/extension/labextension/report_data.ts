/** What a report's output holds, as report.py writes it; a notebook may come from anyone. */

export const MIME_TYPE = "application/vnd.gpuprof.report+json"

const SCRIPT = "application/javascript"
const FORMAT = 1
/** Far more than report.py ever writes: a page holds about 3 MB per profile. */
export const MOST_LETTERS = 64 * 2**20

export const NEWER = "This report was made by a newer gpuprof_widgets: upgrade it to see the interactive views."
export const DAMAGED = "The interactive views cannot be shown: the report's data is damaged. Run the cell again."

export type Bundle = Readonly<Record<string, unknown>>

export type ReportData = {uid: string, explorer: boolean, page: string}

/** The script for front ends without our extension: it holds the data, and here it is only read. */
export function script_of(bundle: Bundle): string {
  const script = bundle[SCRIPT]
  const lines: unknown[] = Array.isArray(script) ? script : [script]
  return lines.every((line) => typeof line === "string") ? lines.join("") : ""
}

/** The data of a bundle's report, or why there is none. */
export function report_of(bundle: Bundle): ReportData | string {
  const format = field(bundle[MIME_TYPE], "format")
  if (format !== FORMAT) {
    return typeof format === "number" && format > FORMAT ? NEWER : DAMAGED
  }
  const data = parsed(last_line_but_one(script_of(bundle).trimEnd()))
  const uid = field(data, "uid")
  const explorer = field(data, "explorer")
  const page = field(data, "page")
  return is_uid(uid) && typeof explorer === "boolean" && is_base64(page) ? {uid, explorer, page} : DAMAGED
}

function field(value: unknown, name: string): unknown {
  return typeof value === "object" && value != null && Object.hasOwn(value, name) ? (value as Bundle)[name] : undefined
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return null
  }
}

function last_line_but_one(text: string): string {
  const end = text.lastIndexOf("\n")
  return end < 0 ? "" : text.slice(text.lastIndexOf("\n", end - 1) + 1, end)
}

function is_uid(value: unknown): value is string {
  return typeof value === "string" && /^[0-9a-f]{12}(-\d+)?$/.test(value)
}

/** Looks for what does not belong: a pattern of all that does may run out of stack on a long text. */
function is_base64(value: unknown): value is string {
  return typeof value === "string" && value !== "" && value.length <= MOST_LETTERS && !/[^A-Za-z0-9+/=]/.test(value)
}
