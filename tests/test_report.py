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

from gpuprof_widgets.analyses.findings.places import NO_PLACES
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.readers import load
from gpuprof_widgets.views.page import VIEWS, report_page
from gpuprof_widgets.views.report import REPORT_TYPE, outputs, page_script, standalone_html
from tests.traces import kernel, op, runtime, trace_of

pytestmark = pytest.mark.slow

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
    data: dict[str, Any] = json.loads(script.split("\n")[-2])
    return data


def page_of(script: str) -> dict[str, Any]:
    page: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(payload(script)["page"])))
    return page


def script_of(record: Record, *, sort: str, embed_runtime: bool) -> str:
    return page_script(report_page(record, sort=sort), embed_runtime=embed_runtime)


def test_three_outputs_in_the_order_of_the_page(record: Record) -> None:
    static, picture, live = outputs(record, sort="cpu_self", top=5, embed_runtime=False)
    assert set(static) == {"text/html", "text/plain"}
    assert "gpuprof-static" in static["text/html"]
    uid = payload(live["application/javascript"])["uid"]
    assert static["text/html"].startswith(f'<div class="gpuprof-{uid}">')
    assert base64.b64decode(picture["image/png"])[:8] == b"\x89PNG\r\n\x1a\n"
    assert picture["text/plain"] == live["text/plain"] == ""
    assert set(live) == {REPORT_TYPE, "application/javascript", "text/plain"}


def test_library_is_carried_only_where_asked(record: Record) -> None:
    without = payload(script_of(record, sort="device_self", embed_runtime=False))
    assert without["runtime"] is None
    assert without["bokeh"] == bokeh.__version__
    runtime = payload(script_of(record, sort="device_self", embed_runtime=True))["runtime"]
    library, extension = (
        gzip.decompress(base64.b64decode(runtime[key])).decode() for key in ("bokeh", "extension")
    )
    assert f'"{bokeh.__version__}"' in library
    assert "TraceStore" in extension
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
    store = page_of(script)["store"]
    assert store["label"] == MARKUP
    assert store["notes"] == ["stacks were not recorded", NO_PLACES]
    assert store["sort"] == "cpu_total"
    assert store["on_gpu"] is True
    assert store["findings"]
    assert (store["start"], store["end"]) == (0, 9_000)


def test_report_has_the_views_that_have_something_to_show(record: Record) -> None:
    page = report_page(record, sort="device_self")
    assert page["views"] == ["timeline", "flame_graph", "op_table", "analyses"]
    assert VIEWS == ("timeline", "lines", "flame_graph", "op_table", "memory", "analyses")


def test_report_without_gpu_says_so() -> None:
    cpu_only = trace_of(op("aten::add", ts=0, dur=10))
    page = page_of(script_of(cpu_only, sort="device_self", embed_runtime=False))
    assert page["store"]["on_gpu"] is False


def test_the_page_is_data_without_a_model_of_bokeh(record: Record) -> None:
    """A reader's machine builds the views by itself: what is sent can name nothing to run."""
    script = script_of(record, sort="device_self", embed_runtime=False)
    assert "document" not in payload(script)
    text = json.dumps(page_of(script))
    assert re.search('"type": *"object"|CustomJS|"attributes"', text) is None


def test_typical_output_is_small_and_none_is_huge(shared_trace: Path) -> None:
    record = load(shared_trace)
    size = len(script_of(record, sort="device_self", embed_runtime=False))
    events = len(record.trace)
    budget = 200_000 if events < 10_000 else 400_000 if events < 30_000 else 3_000_000
    assert size < budget
