// The contrast of the report's texts, of the borders of its controls and of its coloured fills with what is behind
// them: [ratio, needed, what]. `under`: what is seen through a page without a background of its own.
(under) => {
    const TEXT = 4.5, GRAPHICS = 3
    const numbers = (text) => (text.match(/[\d.]+/g) ?? []).map(Number)
    const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
        .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0)
    const ratio = (one, other) => {
        const [a, b] = [light(one), light(other)].sort((x, y) => y - x)
        return (a + 0.05) / (b + 0.05)
    }
    const up = (node) => node.parentElement ?? node.getRootNode().host ?? null
    const behind = (node) => {
        for (let at = node; at != null; at = up(at)) {
            const [r, g, b, a = 1] = numbers(getComputedStyle(at).backgroundColor)
            if (r != null && a > 0.5) return [r, g, b]
        }
        return under ?? (matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255])
    }
    const found = []
    const add_text = (el, words) => {
        const style = getComputedStyle(el)
        const bar = el.closest("td.bar")
        const backs = [behind(el), ...bar == null ? [] : [numbers(getComputedStyle(bar).getPropertyValue("--soft"))]]
        found.push([Math.min(...backs.map(back => ratio(numbers(style.color), back))), TEXT, words.trim().slice(0, 40)])
    }
    const add_border = (el) => {
        const style = getComputedStyle(el)
        if (style.borderTopStyle != "none" && parseFloat(style.borderTopWidth) > 0) {
            const name = el.getAttribute("aria-label") ?? el.textContent.trim().slice(0, 30)
            found.push([ratio(numbers(style.borderTopColor), behind(up(el))), GRAPHICS, `border of ${el.tagName} ${name}`])
        }
    }
    const add_fill = (el, colours) => {
        const back = behind(up(el))
        found.push([Math.max(...colours.map(colour => ratio(numbers(colour), back))), GRAPHICS, `fill of ${el.className} ${el.textContent}`])
    }
    const walk = (root) => {
        for (const el of root.querySelectorAll("*")) {
            if (el.shadowRoot != null) walk(el.shadowRoot)
            if (el.getClientRects().length == 0 || el.tagName == "STYLE" || el.matches(":disabled")) continue
            const own = [...el.childNodes].filter(node => node.nodeType == 3 && node.textContent.trim() != "")
            if (own.length > 0) add_text(el, own[0].textContent)
            if (el.matches("button, input, select, dialog, kbd")) add_border(el)
            const style = getComputedStyle(el)
            if (el.matches(".swatch")) add_fill(el, [style.backgroundColor, style.boxShadow])
            if (el.matches(".bars .part")) add_fill(el, [style.backgroundColor, style.borderTopWidth == "1px" ? style.borderTopColor : style.backgroundColor])
            if (el.matches("td.change[style]")) add_fill(el, [style.getPropertyValue("--change")])
        }
    }
    walk(document.querySelector(".gpuprof-report"))
    return found
}
