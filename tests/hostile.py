"""A trace whose every text is an attack: on a page, a terminal, a spreadsheet, a picture.

Whatever runs of it says so: it sets ``window.broken``, opens a dialog, or asks for an address of
`ATTACKER`, a host that no browser can find.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuprof_widgets.trace.archive import save
from gpuprof_widgets.trace.chrome_trace import parse_chrome_trace
from gpuprof_widgets.trace.model import Record
from tests.traces import calls_of

ATTACKER = "attacker.invalid"
RUN = f"window.broken=1;alert(1);fetch('https://{ATTACKER}/run')"

PAYLOADS = {
    "script": f"<script>{RUN}</script>",
    "event handler": f'<img src=x onerror="{RUN}">',
    "svg": f"<svg/onload={RUN}>",
    "frame": f'<iframe srcdoc="<script>parent.{RUN}</script>"></iframe>',
    "custom element": f"<details open ontoggle={RUN}><summary>x</summary></details>",
    "link": f'<a href="javascript:{RUN}" id=location name=gpuprof>click</a>',
    "javascript:": f"javascript:{RUN}",
    "remote picture": f"<img src=https://{ATTACKER}/pixel.png srcset=//{ATTACKER}/2x.png>",
    "remote style": f"<link rel=stylesheet href=//{ATTACKER}/a.css><base href=//{ATTACKER}/>",
    "refresh": f'<meta http-equiv=refresh content="0;url=https://{ATTACKER}/">',
    "form": f"<form action=https://{ATTACKER}/><button autofocus>ok</button></form>",
    "style element": f"<style>*{{background:url(https://{ATTACKER}/all)!important}}</style>",
    "style attribute": f'x" style="position:fixed;inset:0;background:url(//{ATTACKER}/css)',
    "style text": f"red;background:url(//{ATTACKER}/text);}}*{{display:none}}",
    "attribute": f"\"' onmouseover={RUN} autofocus onfocus={RUN} x='",
    "end of script": f"</script><script>{RUN}</script>",
    "end of title": f"</title></textarea></style></noscript><script>{RUN}</script>",
    "double escape": "<!--<script>",
    "end of comment": f"--><script>{RUN}</script>]]>",
    "end of string": f"\\\"}}];{RUN}//';{RUN}//`;{RUN}//",
    "template": "${alert(1)} {{constructor.constructor('window.broken=1')()}} <%= 1 %> @SCRIPT@",
    "backticks": f'a`<img src=x onerror="{RUN}">`b``c',
    "entities": "&lt;script&gt;window.broken=1&lt;/script&gt; &#x3c;img src=x&#x3e;",
    "line separators": f"a\u2028{RUN}\u2029{RUN}\x85b",
    "mathematics": f"$$\\href{{javascript:{RUN}}}{{x}}$$ \\(\\style{{inset:0}}{{y}}\\) $a_b$",
    "markdown": f"[x](javascript:{RUN}) ![y](https://{ATTACKER}/md.png)",
    "prototype": "__proto__",
    "constructor": "constructor",
    "bidi override": "level \u202egnp.exe\u202c \u2067user\u2069 \u200fend\u061c",
    "zero width": "aten\u200b::\u2060mm\ufeff\u00ad",
    "colours": "\x1b[31mred\x1b[0m \x1b[8mhidden",
    "title": "\x1b]0;owned\x07\x1b]2;owned\x1b\\",
    "terminal link": f"\x1b]8;;https://{ATTACKER}/\x1b\\click\x1b]8;;\x1b\\",
    "clipboard": "\x1b]52;c;b3duZWQ=\x07",
    "eight-bit codes": "\x9b31mred \x9d0;owned\x9c \x90x\x9c",
    "erasing": "secret\r\x1b[2K\x1b[1A\x08\x08\x7f",
    "nul": "before\x00after",
    "lines": "first\nGPU 0 was busy all the time\r\nthird\x0b\x0c",
    "formula =": "=cmd|'/C calc'!A0",
    "formula +": "+1+1",
    "formula -": "-2+3",
    "formula @": f'@HYPERLINK("https://{ATTACKER}")',
    "formula tab": "\t=1+1",
    "formula return": "\r=1+1",
    "console markup": f"[bold red]x[/] [link=https://{ATTACKER}]y[/link] :smile: [@click=x]",
    "formats": "{0.__class__.__init__.__globals__} %s%n %(x)s $HOME `id` $(id) ~root !ls",
    "path": "../../../../etc/passwd",
}
"""What each text tries; the texts are different, and none is a part of another."""

GPU = 0
STREAM = 7
STEP_US = 1_000


def document() -> dict[str, Any]:
    """A trace in Kineto's format: per payload a region with an op, a frame, a launch and a kernel.

    It is the name of each, an arg of each, and stands beside the events as well.
    """
    first = next(iter(PAYLOADS.values()))
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": GPU, "name": first, "totalGlobalMem": 2**34}],
        "distributedInfo": {
            "backend": first,
            "rank": 0,
            "world_size": 2,
            "pg_config": [{"pg_name": first, "pg_desc": first, "ranks": [0, 1]}],
        },
        "host_name": first,
        first: first,
        "traceEvents": list(_events()),
    }


def _events() -> Iterator[dict[str, Any]]:
    for number, text in enumerate(PAYLOADS.values()):
        yield from _names(number, text)
        yield from _host(number, text)
        yield from _device(number, text)


def _names(number: int, text: str) -> Iterator[dict[str, Any]]:
    """A process and a thread of that name, and an op on them."""
    place: dict[str, Any] = {"pid": 1000 + number, "tid": 1}
    for kind in ("process_name", "process_labels", "thread_name"):
        yield {"ph": "M", "name": kind, "ts": 0, **place, "args": {"name": text, "labels": text}}
    yield _slice(text, "cpu_op", number, 0, 10, **place)
    yield {"ph": "C", "name": text, "ts": STEP_US * number, "pid": text, "tid": text,
           "args": {text: number}}  # fmt: skip


def _host(number: int, text: str) -> Iterator[dict[str, Any]]:
    """Regions of every kind around an op that allocates and launches."""
    owned = {text: text, "class": text, "root": text}
    line = {"line": number + 1, "cell": "Cell [1]"}
    yield _slice(f"{number + 1}: {text}", "cell_line", number, 0, 900, args=line)
    yield _slice(text, "user_annotation", number, 1, 890)
    yield _slice(text, "module", number, 2, 880, args=owned)
    yield _slice(f"{text}(3): {text}", "python_function", number, 3, 870)
    told = {"Input Dims": [[number, 2]], "Input type": [text], "Call stack": f"{text};{text}"}
    yield _slice(text, "cpu_op", number, 4, 800, args=told | {text: text, "External id": number})
    yield _slice(text, text, number, 5, 700)
    yield _memory(number, text, 1 << 20)
    yield _slice(text, "cuda_runtime", number, 20, 50, args={"correlation": number + 1})


def _device(number: int, text: str) -> Iterator[dict[str, Any]]:
    """A kernel, a copy and a collective of that name."""
    place = {"pid": GPU, "tid": STREAM}
    told = {"device": GPU, "stream": STREAM, text: text}
    launched = told | {"correlation": number + 1, "grid": [1, 1, 1], "block": [32, 1, 1]}
    yield _slice(text, "kernel", number, 100, 300, args=launched, **place)
    yield _slice(text, "gpu_memcpy", number, 450, 20, args=told | {"bytes": 4096}, **place)
    words = {"Collective name": text, "dtype": text, "Process Group Name": text}
    words |= {"Process Group Ranks": "[0, 1]", "In msg nelems": 8, "Out msg nelems": 8}
    yield _slice(f"ncclDevKernel_{text}", "kernel", number, 500, 100, args=told | words, **place)


def _memory(number: int, text: str, size: int) -> dict[str, Any]:
    told = {"Addr": 4096 * number, "Bytes": size, "Device Type": 1, "Device Id": GPU}
    told |= {"Total Allocated": size * (number + 1), "Total Reserved": size * 64}
    told |= {"Held as": "parameters", "Held by": text}
    at = STEP_US * number + 10
    return {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "ts": at,
            "pid": 1, "tid": 1, "args": told}  # fmt: skip


def _slice(
    name: str,
    category: str,
    number: int,
    after: int,
    dur: int,
    *,
    pid: Any = 1,
    tid: Any = 1,
    args: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A slice of the payload of that number: µs after its step began."""
    ts = STEP_US * number + after
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts,
            "dur": dur, "args": args or {}}  # fmt: skip


def chrome_trace() -> bytes:
    """The file of `document`; JSON writes what is not ASCII as escapes."""
    return json.dumps(document()).encode()


def record(**metadata: Any) -> Record:
    """The trace with calls of cProfile, the source of a cell, notes and a label."""
    payloads = list(PAYLOADS.values())
    read = parse_chrome_trace(chrome_trace(), Path(PAYLOADS["script"].replace("/", "_")))
    calls = calls_of(*((None, text, 1, 1000 + n) for n, text in enumerate(payloads)))
    calls.functions["file"] = payloads
    source = "\n".join(text.replace("\n", " ").replace("\r", " ") for text in payloads)
    cells = [{"label": "Cell [1]", "source": source, "first_line": 1}]
    told = {
        "label": payloads[0] + PAYLOADS["terminal link"],
        "notes": payloads,
        "cell": source,
        "lines": {"cells": cells, "limit": 10_000},
        "error": PAYLOADS["script"],
        "host": PAYLOADS["script"],
        "options": {},
    }
    return replace(read, calls=calls, metadata=dict(read.metadata) | told | metadata)


def saved(path: Path, **metadata: Any) -> Path:
    """The record as a file of ours."""
    return save(record(**metadata), path)
