"""Canvases that a picture is drawn on, and the colours of the slices.

`Canvas` makes a PNG: pixels for the bars, and text on them. `VectorCanvas` makes an SVG: rectangles
and text, without script, style sheet or anything from elsewhere.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from html import escape

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from gpuprof_widgets.exceptions import printable
from gpuprof_widgets.trace.schema import MODULE_CATEGORIES, RUNTIME_ENDINGS

Pixels = npt.NDArray[np.uint8]
RGB = tuple[int, int, int]

WIDTH, HEIGHT, DPI = 1200, 660, 100
INK, MUTED = "#222222", "#555555"
CARD, BAND = 255, 245
GLYPH_PIXELS = 5.6
LABEL_PIXELS = 44
FONTS = "DejaVu Sans, Verdana, sans-serif"
_ANCHORS = {"left": "start", "center": "middle", "right": "end"}

FRAMES = "Python"
"""The kind of Python functions; a trace of another language has its own word for it."""

KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "cell line": ("#4A5866", ("cell_line",)),
    "module": ("#E3B5CD", MODULE_CATEGORIES),
    "CPU op": ("#56B4E9", ("cpu_op",)),
    "annotation": ("#F0E442", ("user_annotation", "gpu_user_annotation", "nvtx_range")),
    "runtime call": ("#E69F00", ("cuda_runtime", "cuda_driver")),
    FRAMES: ("#CC79A7", ("python_function", "worker", "cprofile")),
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

KIND_OF_CATEGORY = {name: kind for kind, (_, categories) in KINDS.items() for name in categories}


@dataclass(frozen=True)
class Box:
    """A rectangle of the picture, in pixels from its top left corner."""

    left: int
    top: int
    right: int
    bottom: int


class Drawing(ABC):
    """A surface for rectangles in pixels, and words."""

    @abstractmethod
    def fill(self, box: Box, colour: RGB | int) -> None:
        """Draw a rectangle of one colour, or of one grey."""

    @abstractmethod
    def bar(self, box: Box, colour: RGB, strength: npt.NDArray[np.float64]) -> None:
        """Draw a rectangle over a band, each column as opaque as its ``strength`` (0 to 1)."""

    @abstractmethod
    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = 8,
        colour: str = INK,
        align: str = "left",
        weight: str = "normal",
    ) -> None:
        """Draw words on one line whose middle is ``y`` pixels below the top, never as markup.

        ``size`` in points of 1/72 inch, with `DPI` pixels an inch; ``align``: "left", "center" or
        "right" of ``x``.
        """

    def label(self, box: Box, words: str, colour: RGB) -> None:
        """Draw the name of a bar, cut to its width, or nothing where it has no room."""
        room = int((box.right - box.left - 5) / GLYPH_PIXELS)
        if box.right - box.left < LABEL_PIXELS or box.bottom - box.top < 11:
            return
        cut = words if len(words) <= room else words[: max(room - 1, 1)] + "…"
        self.text(box.left + 3, (box.top + box.bottom) / 2, cut, size=7, colour=ink_on(colour))


class Canvas(Drawing):
    """Pixels for the bars, and a figure for the text on them."""

    def __init__(self, height: int = HEIGHT) -> None:
        self.height = height
        self.pixels: Pixels = np.full((height, WIDTH, 3), CARD, np.uint8)
        self.figure = Figure(figsize=(WIDTH / DPI, height / DPI), dpi=DPI, facecolor="none")

    def fill(self, box: Box, colour: RGB | int) -> None:
        """Draw a rectangle of one colour, or of one grey."""
        self.pixels[box.top : box.bottom, box.left : box.right] = colour

    def bar(self, box: Box, colour: RGB, strength: npt.NDArray[np.float64]) -> None:
        """Draw a rectangle over a band, each column as opaque as its ``strength`` (0 to 1)."""
        opacity = strength[:, None]
        columns = opacity * np.array(colour) + (1 - opacity) * BAND
        self.pixels[box.top : box.bottom, box.left : box.right] = columns

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = 8,
        colour: str = INK,
        align: str = "left",
        weight: str = "normal",
    ) -> None:
        """Draw words whose middle is ``y`` pixels below the top; dollars mark no formulas."""
        self.figure.text(
            x / WIDTH,
            1 - y / self.height,
            printable(words),
            size=size,
            color=colour,
            ha=align,
            va="center_baseline",
            weight=weight,
            parse_math=False,
        )

    def png(self, title: str, part: Box | None = None) -> bytes:
        """Return the bars with the text on them, in at most 128 colours to keep notebooks small.

        ``part``: the part of the picture to keep.
        """
        agg = FigureCanvasAgg(self.figure)
        with rc_context({"text.hinting": "none"}):  # a third faster, and as legible at this size
            agg.draw()  # type: ignore[no-untyped-call]  # matplotlib types only a part of Agg
        ink = np.asarray(agg.buffer_rgba())  # type: ignore[no-untyped-call]
        inked = ink[:, :, 3] > 0  # a twentieth of the picture
        opacity = ink[inked, 3:].astype(np.uint16)
        mixed = self.pixels.copy()
        mixed[inked] = (self.pixels[inked] * (255 - opacity) + ink[inked, :3] * opacity) // 255
        image = Image.fromarray(mixed)
        if part is not None:
            image = image.crop((part.left, part.top, part.right, part.bottom))
        image = image.quantize(128, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        described = PngInfo()
        described.add_itxt("Title", printable(title))
        file = io.BytesIO()
        image.save(file, format="png", pnginfo=described)
        return file.getvalue()


class VectorCanvas(Drawing):
    """SVG elements in the order in which they are drawn."""

    def __init__(self) -> None:
        self._elements: list[str] = []

    def fill(self, box: Box, colour: RGB | int) -> None:
        """Draw a rectangle, unless it is empty."""
        self._rectangle(box, colour)

    def bar(self, box: Box, colour: RGB, strength: npt.NDArray[np.float64]) -> None:
        """Draw a rectangle as opaque as its columns are on average."""
        self._rectangle(box, colour, f' fill-opacity="{strength.mean():.2f}"')

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = 8,
        colour: str = INK,
        align: str = "left",
        weight: str = "normal",
    ) -> None:
        """Draw words as text, which can be selected and searched for."""
        pixels = size * DPI / 72
        self._elements.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{pixels:.3g}" font-weight="{weight}" '
            f'fill="{colour}" text-anchor="{_ANCHORS[align]}" dominant-baseline="central">'
            f"{_text(words)}</text>"
        )

    def svg(self, title: str, part: Box) -> bytes:
        """Return the file; ``part`` is the visible part of the picture."""
        width, height = part.right - part.left, part.bottom - part.top
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="{part.left} {part.top} {width} {height}" role="img" '
            f'font-family="{FONTS}">'
        )
        card = f'<rect x="{part.left}" y="{part.top}" width="{width}" height="{height}" '
        lines = [
            head,
            f"<title>{_text(title)}</title>",
            f'{card}fill="{_paint(CARD)}"/>',
            *self._elements,
            "</svg>",
        ]
        return "\n".join(lines).encode() + b"\n"

    def _rectangle(self, box: Box, colour: RGB | int, more: str = "") -> None:
        width, height = box.right - box.left, box.bottom - box.top
        if width > 0 and height > 0:
            self._elements.append(
                f'<rect x="{box.left}" y="{box.top}" width="{width}" height="{height}" '
                f'fill="{_paint(colour)}"{more}/>'
            )


def _paint(colour: RGB | int) -> str:
    red, green, blue = colour if isinstance(colour, tuple) else (colour,) * 3
    return f"#{red:02x}{green:02x}{blue:02x}"


def _text(words: str) -> str:
    """Return words with their markup escaped; characters that XML cannot hold are written out."""
    return escape(printable(words))


def kind_of(category: str) -> str:
    """Return the legend's word for a category; one that is not listed is "other".

    Calls of any tool's runtime or driver are of one kind, MegEngine's like CUDA's.
    """
    known = "cuda_runtime" if category.endswith(RUNTIME_ENDINGS) else category
    return KIND_OF_CATEGORY.get(known, "other")


@cache
def colour_of(name: str, category: str) -> RGB:
    """Return the fill of a bar; bars of one category differ a little by name."""
    shade = sum(map(ord, name)) % 5 * 0.06
    red, green, blue = (
        round(channel + (255 - channel) * shade) for channel in rgb(KINDS[kind_of(category)][0])
    )
    return red, green, blue


def rgb(colour: str) -> RGB:
    """Return the channels, 0 to 255, of a colour such as ``#56B4E9``."""
    value = int(colour.removeprefix("#"), 16)
    return value >> 16, value >> 8 & 255, value & 255


def ink_on(fill: RGB) -> str:
    """Return black or white, whichever reads better: one always has a contrast above 4.5."""
    light = luminance(fill)
    return "#000000" if (light + 0.05) / 0.05 >= 1.05 / (light + 0.05) else "#ffffff"


def luminance(colour: RGB) -> float:
    """Return the relative luminance as WCAG defines it, 0 (black) to 1 (white)."""
    red, green, blue = (_linear(channel / 255) for channel in colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(share: float) -> float:
    return share / 12.92 if share <= 0.04045 else float(((share + 0.055) / 1.055) ** 2.4)
