"""A view as SVG or PNG: where its parts are, and that names in it stay text."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from PIL import Image

from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.views.canvas import HEIGHT, WIDTH
from gpuprof_widgets.views.picture import VIEWS, picture_svg
from tests import hostile
from tests.export_cases import a_profile
from tests.traces import op, trace_of

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def profile() -> Profile:
    return a_profile()


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_as_svg_is_rectangles_and_text(view: str, profile: Profile, tmp_path: Path) -> None:
    root = ElementTree.parse(profile.export(tmp_path / "run.svg", what=view)).getroot()
    assert {element.tag for element in root} == {f"{SVG}title", f"{SVG}rect", f"{SVG}text"}
    left, top, width, height = map(int, root.attrib["viewBox"].split())
    assert 0 <= left < left + width <= WIDTH
    assert 0 <= top < top + height <= HEIGHT
    shown = [str(element.text) for element in root if element.tag == f"{SVG}text"]
    words = {
        "timeline": "GPU 0 · stream 7",
        "flame_graph": "Flame graph: time by call path",
        "ops": "Top ops by GPU self time",
    }
    assert {name for name, text in words.items() if text in shown} == (
        set(words) if view == "all" else {view}
    )
    for element in root:
        if element.tag == f"{SVG}text":
            assert left <= float(element.attrib["x"]) <= left + width
            assert top <= float(element.attrib["y"]) <= top + height


def test_a_bar_of_the_svg_is_where_its_slice_ran() -> None:
    record = trace_of(op("first half", ts=0, dur=500), op("rest", ts=500, dur=500))
    root = ElementTree.fromstring(picture_svg(record, "timeline"))
    bars = [e.attrib for e in root if "fill-opacity" in e.attrib]
    edges = [(int(bar["x"]), int(bar["x"]) + int(bar["width"])) for bar in bars]
    assert edges == [(200, 694), (694, 1188)]
    assert {bar["fill-opacity"] for bar in bars} == {"1.00"}


def test_an_svg_of_attacks_is_text() -> None:
    data = picture_svg(hostile.record()).decode()
    root = ElementTree.fromstring(data)
    assert {element.tag for element in root} <= {f"{SVG}{tag}" for tag in ("title", "rect", "text")}
    names = {name for element in root.iter() for name in element.attrib}
    assert not [name for name in names if name.startswith("on") or "href" in name]
    assert re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", data) is None


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_as_png_is_its_part_of_the_picture(
    view: str, profile: Profile, tmp_path: Path
) -> None:
    box = VIEWS[view]
    with Image.open(profile.export(tmp_path / "run.png", what=view)) as image:
        assert image.size == (box.right - box.left, box.bottom - box.top)
        assert len(image.convert("RGB").getcolors(1 << 20)) > 2
