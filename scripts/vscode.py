"""Read a report in VS Code's own workbench, in one theme after the other: `make vscode`.

    python -m scripts.vscode [NOTEBOOK]

The npm package code-server brings that workbench with its notebook editor, which shows an executed
notebook without a kernel. It takes 0.7 GB of build/vscode, once; the screenshots lie there too.
The first theme is there when the notebook is opened, the others are chosen while it is open. Exits
with 1 if a text of the report is faint in one of them, or a view does not answer.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import nbformat
from nbformat import NotebookNode
from PIL import Image
from playwright.sync_api import Error, Frame, Locator, Page, expect, sync_playwright

from tests.browser.conftest import CHROMIUM_FLAGS, chromium_path, free_port
from tests.browser.report_page import contrasts

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "notebooks" / "01_first_profile.ipynb"
BUILD = ROOT / "build" / "vscode"
CODE_SERVER, NODE = "4.139.1", "24"
PACKAGE = BUILD / "node_modules" / "code-server"
INSTALLED = BUILD / f".installed-{CODE_SERVER}"
WATCHER = "@parcel/watcher"
USER = BUILD / "user"

THEMES = {
    "Dark 2026": "Dark 2026",
    "Dark Modern": "Dark Modern",
    "Light Modern": "Light Modern",
    "Default High Contrast": "Dark High Contrast",
    "Default High Contrast Light": "Light High Contrast",
}
"""Themes as the settings name them, and as the reader does."""
SETTINGS = {
    "workbench.editorAssociations": {"*.ipynb": "jupyter-notebook"},
    "workbench.secondarySideBar.defaultVisibility": "hidden",
    "chat.disableAIFeatures": True,
}
TOP = 150
"""Pixels from the top of the window, below the bars of the workbench."""

STUBS = {
    "spdlog": """class Logger { getLevel() { return 6 } }
for (const name of ["trace", "debug", "info", "warn", "error", "critical", "setLevel",
    "setPattern", "clearFormatters", "flush", "drop"]) Logger.prototype[name] = () => {}
exports.version = 0
exports.Logger = Logger
exports.setLevel = exports.setFlushOn = () => {}
exports.createRotatingLogger = exports.createAsyncRotatingLogger = async () => new Logger()
""",
    "native-watchdog": "exports.start = () => {}\nexports.exit = code => process.exit(code)\n",
}
"""What stands for two native modules that nothing here needs, so that no compiler is needed."""


def main() -> None:
    notebook = Path(sys.argv[1]) if len(sys.argv) > 1 else NOTEBOOK
    install()
    folder = BUILD / "notebooks"  # of a copy: the workbench saves what it has open
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shown = nbformat.read(notebook, as_version=4)
    shown.cells = [next(filter(has_report, shown.cells))]  # which is on the screen then
    nbformat.write(shown, folder / notebook.name)
    with served(folder) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 1500})
        page.goto(address)
        frame = opened(page, notebook.name)
        faults = [fault for theme in THEMES for fault in faults_in(page, frame, theme)]
        browser.close()
    print(*faults, f"Screenshots: {BUILD}/*.png", sep="\n")
    sys.exit(bool(faults))


def has_report(cell: NotebookNode) -> bool:
    return any(
        "application/javascript" in output.get("data", {}) for output in cell.get("outputs", [])
    )


def install() -> None:
    """Install the workbench, unless it is there."""
    if INSTALLED.exists():
        return
    print(f"Installing code-server {CODE_SERVER} into {BUILD} (0.7 GB) ...", flush=True)
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    (BUILD / "package.json").write_text("{}")
    npm(BUILD, f"node@{NODE}")
    npm(BUILD, "--ignore-scripts", f"code-server@{CODE_SERVER}")
    workbench = PACKAGE / "lib" / "vscode"
    npm(workbench, "--ignore-scripts", "--omit=optional")
    modules = workbench / "node_modules"
    version = json.loads((modules / WATCHER / "package.json").read_text())["version"]
    watcher = f"{WATCHER}-linux-x64-glibc@{version}"
    npm(workbench, "--no-save", "--ignore-scripts", "--omit=optional", watcher)
    for name, code in STUBS.items():
        (modules / "@vscode" / name / "index.js").write_text(code)
    INSTALLED.touch()


def npm(folder: Path, *arguments: str) -> None:
    quiet = ["--no-audit", "--no-fund", "--loglevel=error", "--omit=dev"]
    subprocess.run(
        ["npm", "install", *quiet, *arguments], cwd=folder, env=environment(), check=True
    )


def environment() -> dict[str, str]:
    """Return our environment with the Node of the workbench and without personal settings."""
    path = os.pathsep.join([str(BUILD / "node_modules" / ".bin"), os.environ["PATH"]])
    return os.environ | {"PATH": path, "XDG_CONFIG_HOME": str(BUILD / "config")}


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Run the workbench on a folder, with nobody's settings, in the first theme."""
    shutil.rmtree(USER, ignore_errors=True)
    (USER / "User").mkdir(parents=True)
    settings = SETTINGS | {"workbench.colorTheme": next(iter(THEMES))}
    (USER / "User" / "settings.json").write_text(json.dumps(settings))
    address = f"http://127.0.0.1:{free_port()}"
    without = ["workspace-trust", "telemetry", "update-check"]
    options = [f"--bind-addr={address.removeprefix('http://')}", "--auth=none"]
    options += [f"--user-data-dir={USER}", f"--extensions-dir={USER}/extensions"]
    options += [f"--disable-{name}" for name in without]
    with (BUILD / "log.txt").open("wb") as log:
        server = subprocess.Popen(
            ["node", PACKAGE / "out" / "node" / "entry.js", *options, folder],
            env=environment(), stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        await_answer(address, server)
        yield f"{address}/?folder={folder}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)  # the hosts of extensions as well
        server.wait(20)


def await_answer(address: str, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while True:
        try:
            urlopen(address, timeout=10).close()
            return
        except (URLError, OSError):
            if server.poll() is not None or time.monotonic() > end:
                raise
            time.sleep(0.3)


def opened(page: Page, name: str) -> Frame:
    """Open a notebook as a reader does and return the frame of its outputs with live reports."""
    page.locator(".explorer-folders-view").get_by_text(name).dblclick(timeout=60_000)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for frame in page.frames:
            try:
                if "fake.html" in frame.url and frame.locator(".cell_container").count():
                    frame.locator(".gpuprof-report[data-complete]").first.wait_for(timeout=60_000)
                    page.locator(".tabs-container .tab").click()
                    page.keyboard.press("Control+b")  # hides the explorer
                    return frame
            except Error:  # the workbench replaces frames while it opens a notebook
                pass
        page.wait_for_timeout(300)
    page.screenshot(path=BUILD / "failed.png")
    raise SystemExit(f"{name} has no live report in VS Code; see {BUILD}/log.txt")


def faults_in(page: Page, frame: Frame, theme: str) -> list[str]:
    """Choose a theme, write a screenshot, and return what is hard to read or does not answer."""
    page.locator(".tabs-container .tab").click()  # from here on the keys are the workbench's
    page.keyboard.press("Control+k")
    page.keyboard.press("Control+t")
    page.get_by_placeholder("Select Color Theme").fill(THEMES[theme])
    page.keyboard.press("Enter")
    frame.locator(f"body[data-vscode-theme-id='{theme}']").wait_for(state="attached")
    page.wait_for_timeout(1000)
    behind = colour_beside(page, frame.locator(".gpuprof-report").first)
    lines = contrasts(frame, behind)
    faint = [line for line in lines if line[0] < line[1]]
    brush(page, frame)
    scroll_to(page, frame.locator(".gpuprof-report").first)
    page.wait_for_timeout(1000)
    page.screenshot(path=BUILD / f"{theme.lower().replace(' ', '-')}.png")
    frame.get_by_role("button", name="Clear", exact=True).first.click()
    print(f"{theme}: {len(lines)} texts, borders and fills on {behind}, {len(faint)} of them faint")
    return [f"{theme}: {ratio:.2f}, not {needed}: {name}" for ratio, needed, name in faint]


def scroll_to(page: Page, part: Locator) -> dict[str, float]:
    """Turn the wheel beside the outputs until a part of one stands on top; return its box."""
    for _ in range(40):
        box = part.bounding_box()
        assert box is not None
        if abs(box["y"] - TOP) < 40:
            return dict(box)
        page.mouse.move(box["x"] - 40, 700)
        page.mouse.wheel(0, box["y"] - TOP)
        page.wait_for_timeout(500)
    page.screenshot(path=BUILD / "failed.png")
    raise SystemExit(f"The notebook does not scroll; see {BUILD}/failed.png")


def colour_beside(page: Page, report: Locator) -> tuple[int, ...]:
    """Return the colour that the screen has just left of a report."""
    box = scroll_to(page, report)
    shown = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    return tuple(shown.getpixel((int(box["x"]) - 3, int(box["y"]) + 5)))


def brush(page: Page, frame: Frame) -> None:
    """Drag over the first timeline, of which the report then says the range."""
    box = scroll_to(page, frame.locator("[role=application][aria-label^='Timeline.']").first)
    y = box["y"] + box["height"] - 10
    page.mouse.move(box["x"] + 0.3 * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], y, steps=8)
    page.mouse.up()
    expect(frame.get_by_label("Time range").first).to_contain_text("Range")
    page.mouse.move(5, 5)


if __name__ == "__main__":
    main()
