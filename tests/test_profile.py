"""`Profile`: the record with its analyses and views as methods."""

from __future__ import annotations

from dataclasses import replace

import pytest
from IPython.core.formatters import IPythonDisplayFormatter

from gpuprof_widgets import Profile, runtime_carrier
from gpuprof_widgets.exceptions import OptionError
from gpuprof_widgets.views.page import report_page
from gpuprof_widgets.views.report import REPORT_TYPE, static_html, static_text
from tests.displays import displayed
from tests.traces import annotation, calls_of, kernel, op, runtime, trace_of

pytestmark = pytest.mark.slow


@pytest.fixture
def profile() -> Profile:
    record = trace_of(
        op("aten::linear", ts=0, dur=2_000_000, shapes=[[2, 3]]),
        op("aten::mm", ts=100, dur=900_000, shapes=[[2, 3]]),
        runtime("cudaLaunchKernel", ts=200, dur=300),
        kernel("gemm", ts=1_000_000, dur=500_000, launched_by=2, device=1),
        op("aten::relu", ts=3_000_000, dur=1_500),
        annotation("ProfilerStep#1", ts=3_100_000, dur=900_000),
        runtime("cudaStreamSynchronize", ts=3_200_000, dur=400_000),
        calls=calls_of((None, "main", 1, 100), ("main", "step", 3, 250)),
        label="cell [3]",
    )
    return Profile(record.trace, record.calls, record.metadata)


def test_owners_lead_from_a_kernel_up_to_its_op(profile: Profile) -> None:
    kernel_row = int(profile.trace.slices.index[profile.trace.slices["name"] == "gemm"][0])
    chain = profile.owners(kernel_row)
    assert chain["role"].tolist() == ["op", "op", "launch", "gpu"]
    assert chain["name"].tolist() == ["aten::linear", "aten::mm", "cudaLaunchKernel", "gemm"]
    for row in (-1, len(profile.trace)):
        with pytest.raises(OptionError, match=f"no slice {row}: .* 0 to {len(profile.trace) - 1}"):
            profile.owners(row)


def test_the_views_are_headed_by_the_label_else_by_the_file(profile: Profile) -> None:
    loaded = replace(profile, metadata={"source": "/data/runs/trace.json.gz"})
    labels = [report_page(each, sort="cpu_self")["store"]["label"] for each in (profile, loaded)]
    assert labels == ["cell [3]", "trace.json.gz"]


def test_a_window_is_a_profile(profile: Profile) -> None:
    part = profile.window(0, 1_250_000)
    assert type(part) is Profile
    assert part.device_busy()["busy_ns"].tolist() == [250_000]
    assert part.metadata == {**profile.metadata, "window_ns": [0, 1_250_000]}
    assert profile.window(0, profile.trace.end_ns).metadata == profile.metadata


def test_its_name_is_one_line(profile: Profile) -> None:
    assert repr(profile) == "<Profile 'cell [3]': 7 slices, 4.000 ms, 1 GPU, 2 Python functions>"


def test_a_notebook_gets_text_and_html_without_script(profile: Profile) -> None:
    assert profile._repr_mimebundle_() == {
        "text/plain": static_text(profile),
        "text/html": static_html(profile),
    }


def test_without_a_notebook_show_prints(
    profile: Profile, capsys: pytest.CaptureFixture[str]
) -> None:
    profile.show(top=2)
    assert capsys.readouterr().out == static_text(profile, top=2) + "\n"


def test_in_a_notebook_show_displays_the_reports_outputs(
    profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = displayed(monkeypatch)
    profile.show()
    assert [next(kind for kind in bundle if kind != "text/plain") for bundle in shown] == [
        "text/html",
        "image/png",
        REPORT_TYPE,
    ]


def test_a_profile_as_last_value_is_shown_with_its_views(
    profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = displayed(monkeypatch)
    assert IPythonDisplayFormatter()(profile)
    assert [len(bundle) for bundle in shown] == [2, 2, 3]


def test_bokehjs_comes_along_once_where_the_extension_follows_the_cells(
    profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = displayed(monkeypatch)
    monkeypatch.setattr(runtime_carrier, "followed", runtime_carrier.RuntimeCarrier())
    profile.show()
    profile.show()
    scripts = [bundle["application/javascript"] for bundle in shown[2::3]]
    assert ['"runtime": null' in script for script in scripts] == [False, True]
