"""A view as SVG or PNG: where its parts are, and that names in it stay text."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from matplotlib.colors import to_hex
from PIL import Image

from gpuprof_widgets.profiles import Profile
from gpuprof_widgets.views.canvas import DPI, colour_of
from gpuprof_widgets.views.picture import VIEWS, drawn, picture_svg
from tests import hostile
from tests.export_cases import a_profile
from tests.traces import op, trace_of

pytestmark = pytest.mark.slow

SVG = "{http://www.w3.org/2000/svg}"
POINTS = 72 / DPI
"""The coordinates of an SVG are in points."""


@pytest.fixture
def profile() -> Profile:
    return a_profile()


def tags(root: ElementTree.Element) -> set[str]:
    return {element.tag.rpartition("}")[2] for element in root.iter()}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_as_svg_is_vectors_and_text(view: str, profile: Profile, tmp_path: Path) -> None:
    root = ElementTree.parse(profile.export(tmp_path / "run.svg", what=view)).getroot()
    assert {"title", "path", "text"} <= tags(root)
    left, top, right, bottom = drawn(profile, view).part
    width, height = (right - left) * POINTS, (bottom - top) * POINTS
    assert list(map(float, root.attrib["viewBox"].split())) == [0, 0, width, height]
    texts = list(root.iter(f"{SVG}text"))
    words = {
        "timeline": "GPU 0 · stream 7",
        "flame_graph": "Flame graph: time by call path",
        "ops": "Top ops by GPU self time",
    }
    shown = {name for name, text in words.items() if text in [e.text for e in texts]}
    assert shown == (set(words) if view == "all" else {view})
    for element in texts:
        assert 0 <= float(element.attrib["x"]) <= width
        assert 0 <= float(element.attrib["y"]) <= height


def test_a_bar_of_the_svg_is_where_its_slice_ran() -> None:
    record = trace_of(op("a", ts=0, dur=500), op("b", ts=500, dur=500))
    root = ElementTree.fromstring(picture_svg(record, "timeline"))
    fills = {f"fill: {to_hex(colour_of(name, 'cpu_op'))}" for name in "ab"}
    paths = [e.attrib["d"] for e in root.iter(f"{SVG}path") if e.attrib.get("style") in fills]
    xs = [[float(x) / POINTS for x in re.findall(r"[ML] (\S+)", path)] for path in paths]
    assert [(min(x), max(x)) for x in xs] == [(201, 694), (695, 1188)]


def test_an_svg_of_attacks_is_text() -> None:
    data = picture_svg(hostile.record()).decode()
    root = ElementTree.fromstring(data)
    drawing = {"svg", "title", "metadata", "RDF", "Work", "defs", "style", "g", "path", "text"}
    assert tags(root) == drawing
    names = {name for element in root.iter() for name in element.attrib}
    assert not [name for name in names if name.startswith("on") or "href" in name]
    assert re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", data) is None


def test_an_svg_of_the_same_record_is_the_same(profile: Profile) -> None:
    assert picture_svg(profile) == picture_svg(profile)


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_as_png_is_its_part_of_the_picture(
    view: str, profile: Profile, tmp_path: Path
) -> None:
    box = drawn(profile, view).part
    with Image.open(profile.export(tmp_path / "run.png", what=view)) as image:
        assert image.size == (box.right - box.left, box.bottom - box.top)
        assert len(image.convert("RGB").getcolors(1 << 20)) > 2
