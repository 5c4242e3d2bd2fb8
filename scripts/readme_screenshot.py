"""Write docs/images/report.png, the picture of the README, from the page that `make demo` made."""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "build" / "01_first_profile.html"
PICTURE = ROOT / "docs" / "images" / "report.png"
WIDTH, HEIGHT = 1180, 1640


def main() -> None:
    chromium = shutil.which(os.environ.get("CHROMIUM", "chromium"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.route("https://**", lambda route: route.abort())
        page.goto(PAGE.as_uri())
        page.locator("table[aria-label=Operators] tbody tr").first.wait_for()
        brush_one_step(page)
        page.locator(".jp-CodeCell", has_text="%%gpuprofile").first.evaluate(
            "cell => cell.scrollIntoView()"
        )
        page.wait_for_timeout(500)
        save(page.screenshot())
        browser.close()


def brush_one_step(page: Page) -> None:
    timeline = page.locator("[role=application][aria-label^='Timeline.']").first
    timeline.scroll_into_view_if_needed()
    box = timeline.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] - 10
    page.mouse.move(box["x"] + 0.25 * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], y, steps=8)
    page.mouse.up()
    page.mouse.move(5, 5)


def save(png: bytes) -> None:
    image = Image.open(io.BytesIO(png)).convert("RGB")
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    image.quantize(200, dither=Image.Dither.NONE).save(PICTURE, optimize=True)
    print(f"{PICTURE}: {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
