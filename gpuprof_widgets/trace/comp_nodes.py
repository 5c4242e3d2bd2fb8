"""MegEngine's computing nodes: a device and one of its streams, by the text MegEngine has for it.

``CompNode("gpu0:1" from "gpux:1")`` is stream 1 of GPU 0. The second half is what was asked for,
which a trace may tell alone: ``gpux:1`` is stream 1 of the GPU that is the default, ``xpux:0`` that
of any kind of device. Source: src/core/impl/comp_node/comp_node.cpp of MegEngine (locators).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuprof_widgets.trace.schema import NONE

TEXT = re.compile(
    r'(?:CompNode\(")?'
    r"(?P<name>(?P<kind>gpu|cuda|rocm|cambricon|atlas|xpu|cpu|multithread)"
    r"(?P<device>x|\d{1,4})?:(?P<stream>\w+))"
    r'(?:"(?: from "(?P<asked>[^"]*)")?\))?'
)
HOSTS = ("cpu", "multithread")
"""Kinds of nodes whose work the CPU does."""

ANY = "xpu"


@dataclass(frozen=True)
class CompNode:
    """A computing node, as far as its text tells.

    ``name`` ("gpu0:1"), ``asked`` ("gpux:1"; "" where that is not told), ``on_gpu``: whether its
    work is a GPU's (None: that of any device), ``device`` (-1: the one that is the default) and
    ``stream`` (-1: one that has a name instead of a number).
    """

    name: str
    asked: str
    on_gpu: bool | None
    device: int
    stream: int


def comp_node(text: str) -> CompNode | None:
    """The node of this text; None where it is none."""
    found = TEXT.fullmatch(text.strip())
    if not found:
        return None
    kind, device, stream = found["kind"], found["device"] or "", found["stream"]
    return CompNode(
        name=found["name"],
        asked=found["asked"] or "",
        on_gpu=None if kind == ANY else kind not in HOSTS,
        device=int(device) if device.isdecimal() else NONE,
        stream=int(stream) if stream.isdecimal() and len(stream) < 10 else NONE,
    )
