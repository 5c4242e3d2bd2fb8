"""The three outputs of a cell and the page for a mail: what is in them and how big they are."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import bokeh
import pytest

from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.views import models
from gpuprof_widgets.views.figure import VIEWS, report_figure
from gpuprof_widgets.views.report import figure_script, outputs, standalone_html
from tests.traces import kernel, op, runtime, trace_of

MARKUP = "</script><script>alert(1)</script><!-- "


@pytest.fixture
def record() -> Record:
    return trace_of(
        op(MARKUP, ts=0, dur=9_000),
        runtime("cudaLaunchKernel", ts=1_000, dur=500),
        kernel("gemm", ts=3_000, dur=4_000, launched_by=1),
        label=MARKUP,
        notes=["stacks were not recorded"],
    )


def payload(script: str) -> dict[str, Any]:
    """What the loader is given."""
    found = re.search(r"const report = (\{.*\})$", script, re.MULTILINE)
    assert found is not None
    data: dict[str, Any] = json.loads(found.group(1))
    return data


def document(script: str) -> dict[str, Any]:
    item: dict[str, Any] = json.loads(
        gzip.decompress(base64.b64decode(payload(script)["document"]))
    )
    return item


def model_attributes(item: Any, name: str) -> dict[str, Any]:
    """The attributes of the one model of a kind in a Bokeh document."""
    if isinstance(item, dict):
        if item.get("name") == f"gpuprof_widgets.views.models.{name}" and "attributes" in item:
            return dict(item["attributes"])
        item = list(item.values())
    if isinstance(item, list):
        for part in item:
            found = model_attributes(part, name)
            if found:
                return found
    return {}


def script_of(record: Record, *, sort: str, embed_runtime: bool) -> str:
    return figure_script(report_figure(record, sort=sort), embed_runtime=embed_runtime)


def test_three_outputs_in_the_order_of_the_page(record: Record) -> None:
    static, picture, live = outputs(record, sort="cpu_self", top=5, embed_runtime=False)
    assert set(static) == {"text/html", "text/plain"}
    assert "gpuprof-static" in static["text/html"]
    uid = payload(live["application/javascript"])["uid"]
    assert static["text/html"].startswith(f'<div class="gpuprof-{uid}">')
    assert base64.b64decode(picture["image/png"])[:8] == b"\x89PNG\r\n\x1a\n"
    assert picture["text/plain"] == live["text/plain"] == ""
    assert set(live) == {"application/javascript", "text/plain"}


def test_library_is_carried_only_where_asked(record: Record) -> None:
    without = payload(script_of(record, sort="device_self", embed_runtime=False))
    assert without["runtime"] is None
    assert without["bokeh"] == bokeh.__version__
    runtime = payload(script_of(record, sort="device_self", embed_runtime=True))["runtime"]
    library, extension = (
        gzip.decompress(base64.b64decode(runtime[key])).decode() for key in ("bokeh", "extension")
    )
    assert f'"{bokeh.__version__}"' in library
    assert "gpuprof_widgets.views.models" in extension
    # BokehJS is three quarters of it; the extension carries its engine twice, for the worker too.
    assert sum(map(len, runtime.values())) < 650_000


def test_nothing_in_the_script_ends_its_element(record: Record) -> None:
    script = script_of(record, sort="device_self", embed_runtime=True)
    assert re.search("</script|<!--", script, re.IGNORECASE) is None
    page = standalone_html(record)
    assert len(re.findall("<script", page)) == 1
    assert "&lt;/script&gt;" in page


def test_store_holds_findings_notes_and_bounds(record: Record) -> None:
    script = script_of(record, sort="cpu_total", embed_runtime=False)
    store = model_attributes(document(script), "TraceStore")
    assert store["label"] == MARKUP
    assert store["notes"] == ["stacks were not recorded"]
    assert store["sort"] == "cpu_total"
    assert store["on_gpu"] is True
    assert store["findings"]
    visible = store["visible"]["attributes"]
    assert (visible.get("start", 0), visible["end"]) == (0, 9_000)


def test_report_has_every_view_on_one_store(record: Record) -> None:
    figure = report_figure(record, sort="device_self")
    assert len(list(figure.select({"type": models.TraceStore}))) == 1
    for kind in (models.Timeline, models.FlameGraph, models.OpTable):
        assert len(list(figure.select({"type": kind}))) == 1
    # One above the timeline, and one that follows the reader below it.
    assert len(list(figure.select({"type": models.Minimap}))) == 2
    views = ["timeline", "lines", "flame_graph", "op_table", "memory", "analyses"]
    assert list(VIEWS) == views


def test_report_without_gpu_says_so() -> None:
    cpu_only = trace_of(op("aten::add", ts=0, dur=10))
    store = model_attributes(
        document(script_of(cpu_only, sort="device_self", embed_runtime=False)),
        "TraceStore",
    )
    assert store.get("on_gpu", False) is False


def test_typical_output_is_small_and_none_is_huge(shared_trace: Path) -> None:
    record = load(shared_trace)
    size = len(script_of(record, sort="device_self", embed_runtime=False))
    events = len(record.trace)
    budget = 200_000 if events < 10_000 else 400_000 if events < 30_000 else 3_000_000
    assert size < budget


def test_extension_is_where_bokeh_looks_for_it() -> None:
    package = Path(models.__file__).parents[1]
    assert json.loads((package / "bokeh.ext.json").read_text()) == {}
    built = (package / "dist" / f"{package.name}.min.js").read_text(encoding="utf-8")
    for name in ("TraceStore", "Timeline", "Minimap", "FlameGraph", "OpTable"):
        assert name in built
