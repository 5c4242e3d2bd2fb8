"""The canvas that a picture is drawn on, and the colours of the slices."""

from __future__ import annotations

import io
import warnings
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from math import ceil
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context, rcParams, rcParamsDefault
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.path import Path
from matplotlib.transforms import Bbox, BboxTransformFrom
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from gpuprof_widgets.exceptions import printable
from gpuprof_widgets.trace.schema import MODULE_CATEGORIES, RUNTIME_ENDINGS

RGB = tuple[float, float, float]
Colour = str | RGB | tuple[RGB, float]
"""A colour of matplotlib: a word, its channels (0 to 1), or its channels and its opacity."""

WIDTH = 1200
DPI = 96
"""Pixels an inch as CSS has them: an SVG takes as many pixels of a page as the PNG."""
INK, MUTED = "#222222", "#555555"
CARD, BAND = "#ffffff", "#f5f5f5"
LABEL_PIXELS = 44
_LABEL_POINTS = 7.3
_AROUND_LABEL = 5

_OF_THE_SESSION = ("backend", "backend_fallback", "interactive")
STYLE = {name: rcParamsDefault[name] for name in rcParamsDefault if name not in _OF_THE_SESSION} | {
    "text.color": INK,
    "text.hinting": "none",  # a third faster, and as legible at this size
    "svg.fonttype": "none",  # text stays text, which can be selected and searched for
    "svg.hashsalt": "gpuprof",  # ids would be random
}
"""All of matplotlib's settings that a picture goes by, so that the user's own do not change it."""
_one_at_a_time = Lock()

FONTS = ["DejaVu Sans", "Verdana"]
"""Fonts of the same widths; an SVG takes the second where a system has not the first."""

KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "cell line": ("#4A5866", ("cell_line",)),
    "module": ("#E3B5CD", MODULE_CATEGORIES),
    "CPU op": ("#56B4E9", ("cpu_op",)),
    "annotation": ("#F0E442", ("user_annotation", "gpu_user_annotation", "nvtx_range")),
    "runtime call": ("#E69F00", ("cuda_runtime", "cuda_driver")),
    "Python": ("#CC79A7", ("python_function", "worker", "cprofile")),
    "kernel": ("#009E73", ("kernel",)),
    "copy": ("#0072B2", ("gpu_memcpy", "gpu_memset")),
    "sync, overhead": ("#D55E00", ("cuda_sync", "overhead")),
    "other": ("#999999", ()),
}
"""The kinds of slices in the legend's order, each with its colour and its categories.

The colours are Okabe and Ito's, which differ for every kind of colour blindness. Cell lines and
modules, which lie around the ops, have a lightness of their own: dark and pale. `categories.ts` has
the same table for the page; a test compares the two.
"""


def _mixed(colour: str, towards: float, share: float) -> RGB:
    """Return a colour mixed with black (0) or white (1)."""
    red, green, blue = (channel + (towards - channel) * share for channel in to_rgb(colour))
    return red, green, blue


FAMILY_COLOURS: dict[str, RGB] = {
    "matrix product": to_rgb("#009E73"),
    "convolution": _mixed("#009E73", 0, 0.5),
    "attention": _mixed("#0072B2", 0, 0.55),
    "normalisation": _mixed("#E69F00", 0, 0.45),
    "softmax": _mixed("#D55E00", 0, 0.5),
    "reduction": _mixed("#56B4E9", 0, 0.35),
    "elementwise": _mixed("#009E73", 1, 0.6),
    "lookup": _mixed("#F0E442", 0, 0.3),
    "sort, scan": _mixed("#CC79A7", 0, 0.5),
    "communication": _mixed("#D16C54", 1, 0.45),
    "other kernel": _mixed("#999999", 0, 0.3),
}
"""The colour of each family of kernels (`gpu_work.FAMILIES`), as `categories.ts` has them."""

KIND_OF_CATEGORY = {name: kind for kind, (_, categories) in KINDS.items() for name in categories}


class Box(NamedTuple):
    """A rectangle of the picture, in pixels from its top left corner."""

    left: int
    top: int
    right: int
    bottom: int


CORNERS = [[0, 1], [2, 1], [2, 3], [0, 3], [0, 1]]
"""The fields of a `Box` that are x and y of its corners, back to the first of them."""


class Canvas:
    """Rectangles and words in pixels, which `png` or `svg` makes a figure of.

    ``part``: the part of the picture that is visible. Rectangles of one colour become one path: a
    figure has few artists, however many bars. Of two that overlap, the one whose colour was used
    first lies below; words lie on top.
    """

    def __init__(self, part: Box) -> None:
        self.part = part
        self.boxes: defaultdict[Colour, list[Box]] = defaultdict(list)
        self.words: list[dict[str, Any]] = []

    def fill(self, box: Box, colour: Colour) -> None:
        """Draw a rectangle of one colour."""
        self.boxes[colour].append(box)

    def text(self, x: float, y: float, words: str, **style: Any) -> None:
        """Draw words on one line whose middle is ``y`` pixels below the top, never as markup.

        ``style``: of matplotlib's `Text`, such as its ``size`` in points of 1/72 inch.
        """
        self.words.append({"x": x, "y": y, "s": printable(words), **style})

    def label(self, box: Box, words: str, colour: RGB) -> None:
        """Draw the name of a bar, cut to its width, or nothing where it has no room."""
        if box.right - box.left < LABEL_PIXELS or box.bottom - box.top < 11:
            return
        room = box.right - box.left - _AROUND_LABEL
        ends = list(accumulate(map(_label_width, words[:room])))
        if ends and ends[-1] > room:
            words = words[: bisect(ends, room - _label_width("…"))] + "…"
        middle = (box.top + box.bottom) / 2
        self.text(box.left + 3, middle, words, size=_LABEL_POINTS, color=ink_on(colour))

    def png(self, title: str) -> bytes:
        """Return the picture in at most 128 colours, to keep notebooks small."""
        with _drawing():
            agg = FigureCanvasAgg(self._figure())
            agg.draw()  # type: ignore[no-untyped-call]  # matplotlib types only a part of Agg
        image = Image.fromarray(np.asarray(agg.buffer_rgba())).convert("RGB")  # type: ignore[no-untyped-call]
        image = image.quantize(128, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        described = PngInfo()
        described.add_itxt("Title", printable(title))
        file = io.BytesIO()
        image.save(file, format="png", pnginfo=described)
        return file.getvalue()

    def svg(self, title: str) -> bytes:
        """Return the picture as vectors and text, without script or anything from elsewhere."""
        file = io.BytesIO()
        about = dict.fromkeys(("Date", "Creator", "Format", "Type")) | {"Title": printable(title)}
        with _drawing():
            self._figure().savefig(file, format="svg", metadata=about)
        return file.getvalue()

    def _figure(self) -> Figure:
        left, top, right, bottom = self.part
        size = ((right - left) / DPI, (bottom - top) / DPI)
        figure = Figure(figsize=size, dpi=DPI, facecolor=CARD)
        place = BboxTransformFrom(Bbox([[left, bottom], [right, top]])) + figure.transFigure
        figure.add_artist(
            PathCollection(
                [
                    Path.make_compound_path_from_polys(np.array(boxes)[:, CORNERS])
                    for boxes in self.boxes.values()
                ],
                facecolors=list(self.boxes),
                linewidths=0,
                antialiaseds=False,
                transform=place,
            )
        )
        for words in self.words:
            figure.text(**words, va="center_baseline", parse_math=False, transform=place)
        return figure


def label_room(words: str) -> int:
    """Return the pixels that a box needs for all of its label."""
    return max(ceil(sum(map(_label_width, words))) + _AROUND_LABEL, LABEL_PIXELS)


@cache
def _label_width(letter: str) -> float:
    """Return the pixels that a letter takes in the label of a bar.

    Letters that matplotlib's own font lacks, Chinese ones say, are as wide as they are tall.
    """
    font = get_font(findfont(FONTS[0]))
    if not font.get_char_index(ord(letter)):
        return _LABEL_POINTS / 72 * DPI
    font.set_size(_LABEL_POINTS, DPI)
    return float(font.load_char(ord(letter)).linearHoriAdvance / 65536)


@contextmanager
def _drawing() -> Iterator[None]:
    """Draw in the picture's own style, and say nothing of characters that no font has.

    Characters that the first font lacks, Chinese ones say, come from fonts that the user has set.
    One thread draws at a time: settings and warnings are those of the process, and two threads
    would put back each other's.
    """
    usual = rcParamsDefault["font.sans-serif"]
    with _one_at_a_time:
        fonts = [*FONTS, *(font for font in rcParams["font.sans-serif"] if font not in usual)]
        with rc_context(STYLE | {"font.sans-serif": fonts}), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")
            yield


def kind_of(category: str) -> str:
    """Return the legend's word for a category; one that is not listed is "other".

    Calls of any tool's runtime or driver are of one kind, MegEngine's like CUDA's.
    """
    known = "cuda_runtime" if category.endswith(RUNTIME_ENDINGS) else category
    return KIND_OF_CATEGORY.get(known, "other")


@cache
def colour_of(name: str, category: str, family: str = "") -> RGB:
    """Return the fill of a bar: that of a kernel's family, else of its category and name.

    Bars of one category differ a little by name.
    """
    if category == "kernel" and family:
        return FAMILY_COLOURS[family]
    shade = sum(map(ord, name)) % 5 * 0.06
    red, green, blue = to_rgb(KINDS[kind_of(category)][0])
    return red + (1 - red) * shade, green + (1 - green) * shade, blue + (1 - blue) * shade


def ink_on(fill: RGB) -> str:
    """Return black or white, whichever reads better: one always has a contrast above 4.5."""
    light = luminance(fill)
    return "#000000" if (light + 0.05) / 0.05 >= 1.05 / (light + 0.05) else "#ffffff"


def luminance(colour: RGB) -> float:
    """Return the relative luminance as WCAG defines it, 0 (black) to 1 (white)."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
