"""Reports in notebooks of strangers: our extension of JupyterLab shows them and runs nothing."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from playwright.sync_api import expect

from gpuprof_widgets.views.report import outputs
from tests import hostile
from tests.browser.conftest import Lab
from tests.browser.watched import GLOBALS, Watched
from tests.traces import kernel, op, runtime, trace_of

SCRIPT = "application/javascript"
DAMAGED = "the report's data is damaged"
MODEL = {
    "type": "object",
    "name": "CustomJS",
    "id": "p1",
    "attributes": {"code": hostile.RUN, "args": {}},
}
"""What BokehJS, were it to read this, would make a model of that runs code."""

Json = dict[str, Any]
Forge = Callable[[Json], Json]


@cache
def bundles() -> list[Json]:
    record = trace_of(
        op("aten::mm", ts=0, dur=9_000),
        runtime("cudaLaunchKernel", ts=1_000, dur=1_000),
        kernel("gemm", ts=3_000, dur=4_000, launched_by=1),
        label="received",
    )
    return list(outputs(record, sort="cpu_self", top=5, embed_runtime=False))


def written(path: Path, *cells: list[Json]) -> None:
    """Write a notebook that nobody has run or trusted; each of its cells has these outputs."""
    shown = [
        new_code_cell(
            f"cell {number}", outputs=[new_output("display_data", data=data) for data in cell]
        )
        for number, cell in enumerate(cells)
    ]
    nbformat.write(new_notebook(cells=shown), path)


def data_of(script: str) -> Json:
    data: Json = json.loads(script.split("\n")[-2])
    return data


def with_data(bundle: Json, data: Json) -> Json:
    """The output with other data, in a script that would attack if it ran."""
    return bundle | {SCRIPT: f"{hostile.RUN};(() => {{}})(\n{json.dumps(data)}\n)"}


def packed(value: Any) -> str:
    return base64.b64encode(gzip.compress(json.dumps(value).encode())).decode()


def unpacked(text: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(text)))


def with_page(change: Forge) -> Forge:
    """Change what the page is built from."""
    return lambda data: data | {"page": packed(change(unpacked(data["page"])))}


def with_store(**changed: Any) -> Forge:
    return with_page(lambda page: page | {"store": page["store"] | changed})


def with_header(**changed: Any) -> Forge:
    """Change the header of the encoded record."""

    def forged(page: Json) -> Json:
        content = gzip.decompress(base64.b64decode(page["store"]["payload"]))
        end = 4 + int.from_bytes(content[:4], "little")
        text = json.dumps(json.loads(content[4:end]) | changed).encode()
        payload = len(text).to_bytes(4, "little") + text + content[end:]
        coded = base64.b64encode(gzip.compress(payload)).decode()
        return page | {"store": page["store"] | {"payload": coded}}

    return with_page(forged)


def bomb(_: Json) -> Json:
    """A few hundred kilobytes that unpack to more than a page may hold."""
    return {
        "page": base64.b64encode(gzip.compress(b" " * (2**29 + 1), 9)).decode(),
        "uid": "0123456789ab",
        "explorer": False,
    }


TRACK = {"kind": "cpu", "label": "", "process": "", "thread": "", "lane": 0, "device": -1}
REFUSED: dict[str, tuple[Forge, str]] = {
    "a Bokeh document": (lambda data: data | {"document": data["page"], "page": None}, "damaged"),
    "a page that is a model": (with_page(lambda _: MODEL), DAMAGED),
    "a view that is a model": (with_page(lambda page: page | {"views": [MODEL]}), DAMAGED),
    "a finding that is a model": (with_store(findings=[MODEL]), DAMAGED),
    "a note that is a model": (with_store(notes=[MODEL]), DAMAGED),
    "a label that is a model": (with_store(label=MODEL), DAMAGED),
    "a focus that is a model": (with_store(focus=MODEL), DAMAGED),
    "a name that is a model": (with_header(names=[MODEL]), DAMAGED),
    "a kind that every object has": (with_page(lambda page: page | {"kind": "toString"}), DAMAGED),
    "a kind of its own": (with_page(lambda page: page | {"kind": "__proto__"}), DAMAGED),
    "no store": (with_page(lambda page: {"kind": "report", "views": [], "cards": []}), DAMAGED),
    "rows without end": (with_header(rows=10**15), DAMAGED),
    "a track without end": (with_header(tracks=[TRACK | {"stream": -1, "rows": 10**12}]), DAMAGED),
    "numbers for texts": (with_store(label=7), DAMAGED),
    "a bomb": (bomb, "larger than any report"),
    "half of a page": (lambda data: data | {"page": data["page"][:200]}, "could not start"),
    "text for base64": (lambda data: data | {"page": hostile.RUN}, "damaged"),
    "a hostile name": (lambda data: data | {"uid": hostile.PAYLOADS["attribute"]}, "damaged"),
    "a name that is a prototype": (lambda data: data | {"uid": "__proto__"}, "damaged"),
}
"""What a stranger may put in the place of the data, and what the reader is told."""


def test_data_that_is_no_report_is_refused(watched: Watched, other_lab: Lab) -> None:
    *static, live = bundles()
    forged = [with_data(live, forge(data_of(live[SCRIPT]))) for forge, _ in REFUSED.values()]
    cells = [[*static, live], *([*static, each] for each in forged)]
    written(other_lab.root / "forged.ipynb", *cells)
    page = watched.page
    page.goto(other_lab.url("forged.ipynb"))
    code = page.locator(".jp-CodeCell")
    expect(code.first.locator(".gpuprof-report[data-complete]")).to_have_count(1)
    names = page.evaluate(GLOBALS)
    for number, (what, (_, message)) in enumerate(REFUSED.items(), start=1):
        cell = code.nth(number)
        cell.evaluate("cell => cell.scrollIntoView()")
        said = cell.locator(".gpuprof-message")
        expect(said, what).to_contain_text(message)
        expect(cell.locator(".gpuprof-static")).to_be_visible()
        assert cell.locator(".gpuprof-report[data-complete]").count() == 0, what
    watched.assert_nothing_ran(errors=False)
    assert page.evaluate(GLOBALS) == names
    own = (f"http://127.0.0.1:{other_lab.port}/", f"ws://127.0.0.1:{other_lab.port}/")
    assert [url for url in watched.asked if not url.startswith((*own, "data:", "blob:"))] == []


@pytest.mark.parametrize("front_end", ["other_lab", "notebook7"])
def test_hostile_texts_are_shown_as_texts(
    watched: Watched, front_end: str, request: pytest.FixtureRequest
) -> None:
    """Each in every place of a page and of its record at once; many of them as one text.

    Reports work alone as well: none of this notebook's outputs holds BokehJS.
    """
    reader: Lab = request.getfixturevalue(front_end)
    *static, live = bundles()
    data = data_of(live[SCRIPT])

    def attacked(value: Any, text: str) -> Any:
        if isinstance(value, dict):
            kept = ("kind", "uid", "payload", "views", "sort", "functions_sort")
            return {
                key: part if key in kept else attacked(part, text) for key, part in value.items()
            }
        if isinstance(value, list):
            return [attacked(part, text) for part in value]
        return text if isinstance(value, str) else value

    alone = [hostile.PAYLOADS[name] for name in ALONE]
    others = [text for name, text in hostile.PAYLOADS.items() if name not in ALONE]
    cells = [
        [*static, with_data(live, with_page(lambda page, text=text: attacked(page, text))(data))]
        for text in [*alone, *(" ".join(others[at::3]) for at in range(3))]
    ]
    written(reader.root / "texts.ipynb", bundles(), *cells)
    page = watched.page
    page.goto(reader.url("texts.ipynb"))
    watched.start_reports(1 + len(cells))
    expect(page.locator(".gpuprof-message")).to_have_count(0)
    first = page.locator(".jp-CodeCell").first
    expect(first.get_by_role("table", name="Op table")).to_contain_text("aten::mm")
    expect(first.locator(".gpuprof-static")).to_be_hidden()
    watched.assert_nothing_ran(errors=False)


ALONE = ("javascript:", "prototype", "constructor", "style text", "attribute")
"""What only attacks where it is the whole text, or begins it."""


def test_a_report_that_could_not_start_starts_when_it_is_rendered_again(
    watched: Watched, other_lab: Lab
) -> None:
    written(other_lab.root / "again.ipynb", bundles())
    page = watched.page
    page.route("**/static/gpuprof.*.js*", lambda route: route.abort())
    page.goto(other_lab.url("again.ipynb"))
    expect(page.locator(".gpuprof-message")).to_contain_text("could not start")
    page.unroute("**/static/gpuprof.*.js*")
    page.get_by_role("dialog").get_by_role("button", name="No Kernel").click()
    page.locator(".jp-CodeCell .cm-content").click()
    page.keyboard.press("Control+Shift+C")  # a notebook that is trusted now renders all it holds
    page.keyboard.type("Trust Notebook")
    page.keyboard.press("Enter")
    page.get_by_role("dialog").get_by_role("button", name="Trust").click()
    expect(page.locator(".gpuprof-report[data-complete]")).to_have_count(1)
    expect(page.locator(".gpuprof-message")).to_have_count(0)
