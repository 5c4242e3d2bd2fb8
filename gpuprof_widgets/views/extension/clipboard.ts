/** Copies text, also where the page may not use the clipboard API (as in `file://` pages and iframes). */
export async function copy_text(text: string, host: ShadowRoot): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text)
    return true
  } catch {
    return copy_by_selection(text, host)
  }
}

function copy_by_selection(text: string, host: ShadowRoot): boolean {
  const area = document.createElement("textarea")
  area.value = text
  area.style.position = "fixed"
  area.style.opacity = "0"
  host.append(area)
  area.select()
  const copied = document.execCommand("copy")
  area.remove()
  return copied
}
