"""What a picture is drawn on: pixels for the bars, and text on them."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from gpuprof_widgets.printable import printable
from gpuprof_widgets.views.colours import RGB, ink_on

WIDTH, HEIGHT, DPI = 1200, 660, 100
INK, MUTED = "#222222", "#555555"
CARD, BAND, RULE = 255, 245, 215
GLYPH_PIXELS = 5.6
LABEL_PIXELS = 44

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Box:
    """A rectangle of the picture, in pixels from its top left corner."""

    left: int
    top: int
    right: int
    bottom: int


class Drawing(ABC):
    """What can be drawn on: rectangles in pixels, and words."""

    @abstractmethod
    def fill(self, box: Box, colour: RGB | int) -> None:
        """A rectangle of one colour, or of one grey."""

    @abstractmethod
    def bar(self, box: Box, colour: RGB, strength: npt.NDArray[np.float64]) -> None:
        """A rectangle over a band, per pixel column as opaque as its ``strength`` (0 to 1)."""

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
        """Words on one line whose middle is ``y`` pixels below the top; nothing in them is markup.

        ``size`` in points of 1/72 inch, with `DPI` pixels an inch; ``align``: "left", "center" or
        "right" of ``x``.
        """

    def label(self, box: Box, words: str, colour: RGB) -> None:
        """The name of a bar, cut to its width, or nothing where it has no room."""
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
        """A rectangle of one colour, or of one grey."""
        self.pixels[box.top : box.bottom, box.left : box.right] = colour

    def bar(self, box: Box, colour: RGB, strength: npt.NDArray[np.float64]) -> None:
        """A rectangle over a band, per pixel column as opaque as its ``strength`` (0 to 1)."""
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
        """Words whose middle is ``y`` pixels below the top; dollars are no formulas."""
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
        """The bars with the text on them, in at most 128 colours to keep notebooks small.

        ``part``: of the picture only this.
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
