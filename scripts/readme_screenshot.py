"""Write the README's picture and animation: the report of a cell that was recorded on an H200.

    python -m scripts.readme_screenshot

The profile is one of tests/data/gpu. It was saved redacted, so the source of its cell comes from
the table of the cells that were recorded.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from playwright.sync_api import Locator, Page, sync_playwright

import gpuprof_widgets
from tests.everyday_gpu import GPU_CELLS

ROOT = Path(__file__).parents[1]

PROFILE = ROOT / "tests" / "data" / "gpu" / "the_loss_read_in_every_step.gpuprof"
CELL = "the loss read in every step"
REPORT = ROOT / "build" / "readme_report.html"
PICTURE = ROOT / "docs" / "images" / "report.png"
ANIMATION = ROOT / "docs" / "images" / "brushing.webp"
WIDTH, HEIGHT = 1180, 1560
FRAMES = 9
FRAME_MS, LAST_MS = 220, 2400
COLOURS = 200


def main() -> None:
    write_report()
    chromium = shutil.which(os.environ.get("CHROMIUM", "chromium"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, offline=True)
        page.goto(REPORT.as_uri())
        page.locator(".gpuprof-report[data-complete]").wait_for()
        frames = [screenshot(page), *(screenshot(page) for _ in brush_one_step(page))]
        browser.close()
    save_picture(frames[-1])
    save_animation(frames)


def write_report() -> None:
    """Write the page of the profile, with the source of its cell."""
    source = next(cell.cell for cell in GPU_CELLS if cell.name == CELL)
    profile = gpuprof_widgets.load(PROFILE)
    profile.metadata["lines"]["cells"][0]["source"] = f"%%gpuprofile\n{source}"
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(profile.report(), encoding="utf-8")


def brush_one_step(page: Page) -> Iterator[None]:
    """Drag over a step of the training, and stop wherever a picture can be taken."""
    x, y, width = inside(page.locator("[role=application][aria-label^='Timeline.']").first)
    page.mouse.move(x + 0.408 * width, y)
    page.mouse.down()
    for frame in range(1, FRAMES):
        page.mouse.move(x + (0.408 + 0.118 * frame / (FRAMES - 1)) * width, y)
        page.wait_for_timeout(200)
        yield
    page.mouse.up()
    page.mouse.move(5, 5)
    page.wait_for_timeout(500)
    yield


def inside(plot: Locator) -> tuple[float, float, float]:
    """Return the left edge, a height near the bottom, and the width of a plot, in pixels."""
    box = plot.bounding_box()
    assert box is not None
    return box["x"], box["y"] + box["height"] - 10, box["width"]


def screenshot(page: Page) -> Image.Image:
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def save_picture(image: Image.Image) -> None:
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(PICTURE, optimize=True)
    print(f"{PICTURE}: {PICTURE.stat().st_size:,} bytes")


def save_animation(frames: list[Image.Image]) -> None:
    first, *others = frames
    first.save(
        ANIMATION, save_all=True, append_images=others, loop=0, lossless=True, method=6,
        duration=[LAST_MS // 2, *[FRAME_MS] * (len(frames) - 2), LAST_MS],
    )  # fmt: skip
    print(f"{ANIMATION}: {ANIMATION.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
