"""The page's engine, from the committed bundle, called from Python."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bokeh
from playwright.sync_api import Browser, Page

import gpuprof_widgets
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.views.encoding import encode

BOKEHJS = Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js"
EXTENSION = Path(gpuprof_widgets.__file__).parent / "dist" / "gpuprof_widgets.min.js"
ENGINE = 'Bokeh.Models.get("gpuprof_widgets.TraceStore").engine'


@dataclass(frozen=True)
class Engine:
    """A page without views that holds at most one decoded record, ``store``."""

    page: Page

    def load(self, record: Record, **options: Any) -> None:
        """Encode a record as a report does, and decode it in the page."""
        text = encode(record, **options).text
        self.run("async (text) => { window.store = await engine.Store.decode(text) }", text)

    def run(self, function: str, argument: Any = None) -> Any:
        """Call a JavaScript function; it may use ``engine`` and ``store``."""
        written = f"async (argument) => JSON.stringify(await ({function})(argument)) ?? 'null'"
        return json.loads(self.page.evaluate(written, argument))  # arrays cross faster as text


def start_engine(browser: Browser) -> Engine:
    """An empty page with BokehJS and our extension."""
    page = browser.new_page()
    page.add_script_tag(path=BOKEHJS)
    page.add_script_tag(path=EXTENSION)
    page.evaluate(f"() => {{ window.engine = {ENGINE} }}")
    return Engine(page)
