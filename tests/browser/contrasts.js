// The contrast of every text of the report with what is behind it, and its first words.
() => {
    const numbers = (text) => (text.match(/[\d.]+/g) ?? []).map(Number)
    const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
        .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0)
    const up = (node) => node.parentElement ?? node.getRootNode().host ?? null
    const behind = (node) => {
        for (let at = node; at != null; at = up(at)) {
            const [r, g, b, a = 1] = numbers(getComputedStyle(at).backgroundColor)
            if (r != null && a > 0.5) return [r, g, b]
        }
        return matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255]
    }
    const found = []
    const walk = (root) => {
        for (const el of root.querySelectorAll("*")) {
            if (el.shadowRoot != null) walk(el.shadowRoot)
            const own = [...el.childNodes].filter(node => node.nodeType == 3 && node.textContent.trim() != "")
            if (own.length == 0 || el.getClientRects().length == 0 || el.tagName == "STYLE" || el.matches(":disabled")) continue
            const [a, b] = [light(numbers(getComputedStyle(el).color)), light(behind(el))].sort((x, y) => y - x)
            found.push([(a + 0.05) / (b + 0.05), own[0].textContent.trim().slice(0, 40)])
        }
    }
    walk(document.querySelector(".gpuprof-report"))
    return found
}
