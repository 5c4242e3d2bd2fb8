"""`Chart`: what its page is sent; how it is drawn is in browser/test_explored_notebook.py."""

from __future__ import annotations

from typing import Any

import pytest
from bokeh.plotting import figure

from gpuprof_widgets import Chart

Message = tuple[dict[str, Any], list[bytes]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    messages: list[Message] = []

    def send(_: Chart, content: dict[str, Any], buffers: list[bytes] | None = None) -> None:
        messages.append((content, buffers or []))

    monkeypatch.setattr(Chart, "send", send)
    return messages


def test_a_new_view_is_sent_the_figure_with_the_library(sent: list[Message]) -> None:
    chart = Chart(figure())
    sent.clear()
    chart._handle_custom_msg({"asks": "figure"}, [])
    chart._handle_custom_msg({"asks": "figure"}, [])
    for content, [script] in sent:
        assert f'"uid": "{content["draws"]}"'.encode() in script
        assert b'"runtime": {' in script
    assert len({content["draws"] for content, _ in sent}) == 2


def test_another_figure_is_sent_alone(sent: list[Message]) -> None:
    chart = Chart(figure())
    assert sent == []  # nobody has asked yet
    chart._handle_custom_msg({"asks": "figure"}, [])
    sent.clear()
    chart.figure = figure()
    [(content, [script])] = sent
    assert f'"uid": "{content["draws"]}"'.encode() in script
    assert b'"runtime": null' in script
    assert len(script) < 50_000


def test_a_figure_can_be_drawn_by_two_charts(sent: list[Message]) -> None:
    plot = figure()
    charts = Chart(plot), Chart()
    for chart in charts:
        chart._handle_custom_msg({"asks": "figure"}, [])
        chart.figure = plot
        assert plot.document is None


def test_without_a_figure_nothing_is_drawn(sent: list[Message]) -> None:
    chart = Chart(figure())
    chart._handle_custom_msg({"asks": "figure"}, [])
    sent.clear()
    chart.figure = None
    assert sent == [({"draws": None}, [])]
