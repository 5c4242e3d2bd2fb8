"""What a function waits for, by its name: the built-in ones, and those of Python's library.

The names are those of CPython's C modules (``time``, ``_thread``, ``posix``, ``select``,
``_socket``, ``_ssl``, ``_io``, ``_pickle``, ``_winapi``) and of its library, of torch's reader and
writer of files, and of the functions with which PyTorch users read and write them.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pandas as pd

from gpuprof_widgets.trace.python_frames import BUILT_IN
from gpuprof_widgets.trace.schema import NONE

Ints = npt.NDArray[np.int64]

TIMER, NETWORK, PROCESS, THREAD, INPUT, PIPE, READ, WRITE = range(8)
KINDS = ("timer", "network", "process", "thread", "input", "pipe", "read", "write")
"""What is waited for; the last two are files."""

_METHOD = re.compile(r"<(?:built-in )?method '?(?P<name>\w+)'? of '?(?P<owner>[\w.]+)")
_FUNCTION = re.compile(r"<(?:built-in )?(?:method|function) (?P<name>[\w.]+)")

_BUILT_IN = {
    TIMER: r"(?:time)?\.sleep",
    NETWORK: r"socket\.(?:recv\w*|_?accept|connect|connect_ex|send\w*)"
    r"|_SSLSocket\.(?:read|write|do_handshake|shutdown)"
    r"|(?:_socket)?\.(?:getaddrinfo|gethostby\w+|getnameinfo)",
    PROCESS: r"(?:posix)?\.(?:wait|wait3|wait4|waitid|waitpid)|(?:_winapi)?\.WaitFor\w+"
    r"|SemLock\.(?:acquire|__enter__)",
    THREAD: r"R?[lL]ock\.(?:acquire|acquire_lock|__enter__)|SimpleQueue\.get",
    INPUT: r"(?:builtins)?\.input",
    PIPE: r"(?:select|poll|epoll|devpoll|kqueue)?\.(?:select|poll|control)|(?:posix)?\.read",
    READ: r"(?:Buffered\w+|FileIO|TextIOWrapper|_\w*IOBase)\.(?:read\w*|__next__)"
    r"|(?:io|_io|posix|builtins)?\.open|(?:posix)?\.preadv?"
    r"|\w*\.(?:get_storage_from_record|get_record)"
    r"|(?:_pickle|marshal)?\.load|(?:multiarray|numpy)?\.fromfile|ImagingDecoder\.decode",
    WRITE: r"(?:Buffered\w+|FileIO|TextIOWrapper|_\w*IOBase)\.(?:write\w*|flush|truncate|close"
    r"|__exit__)"
    r"|(?:posix)?\.(?:fsync|fdatasync|sync|sendfile|pwritev?|copy_file_range)"
    r"|\w*\.(?:write_record|write_end_of_file)"
    r"|(?:_pickle|marshal)?\.dump|ndarray\.tofile|ImagingEncoder\.encode(?:_to_file)?",
}
"""By type or module and name; torch's frames leave the module of a function out."""

_LIBRARY = {
    NETWORK: r"(?:^|/)(?:socket\.py (?:readinto|accept|create_connection)"
    r"|ssl\.py (?:read|recv|recv_into|send|sendall|do_handshake|connect))",
    PROCESS: r"(?:^|/)(?:multiprocessing/(?:connection\.py (?:_recv|_recv_bytes|_poll|_send|accept)"
    r"|popen_\w+\.py (?:poll|wait)|synchronize\.py (?:__enter__|acquire))"
    r"|subprocess\.py (?:_try_wait|_wait|_communicate))",
    THREAD: r"(?:^|/)(?:threading\.py (?:wait|join|acquire|_wait_for_tstate_lock)|queue\.py get)",
    PIPE: r"(?:^|/)selectors\.py select",
}
"""Functions of Python's library whose own time is that wait, where samplers see no built-ins."""

_WHOLE = {
    READ: r"(?:^|/)(?:torch/serialization\.py load|numpy/lib/_?npyio(?:_impl)?\.py "
    r"(?:load|loadtxt|genfromtxt)|json/__init__\.py load|pickle\.py _?load"
    r"|PIL/(?:Image\.py open|ImageFile\.py load)|pandas/io/(?:\w+/)*\w+\.py read_\w+"
    r"|safetensors/\w+\.py load_file|torchvision/io/\w+\.py (?:read|decode)_\w+"
    r"|pathlib(?:/\w+)?\.py read_(?:text|bytes))",
    WRITE: r"(?:^|/)(?:torch/serialization\.py save|numpy/lib/_?npyio(?:_impl)?\.py save\w*"
    r"|json/__init__\.py dump|pickle\.py _?dump|PIL/Image\.py save"
    r"|pandas/\w+/(?:\w+/)*\w+\.py to_(?:csv|parquet|pickle|json|feather|hdf)"
    r"|safetensors/\w+\.py save_file|torchvision/io/\w+\.py write_\w+|shutil\.py (?:copy\w*|move)"
    r"|pathlib(?:/\w+)?\.py write_(?:text|bytes))",
}
"""Functions of libraries that do but that, decoding and copying included: all of their time."""

ASIDE = re.compile(
    r"^<frozen importlib|(?:^|/)(?:importlib|asyncio)/|(?:^|/)torch/utils/data/dataloader\.py "
    r"|(?:^|/)(?:ipykernel|zmq|tornado)/"
)
"""Below these a wait has findings of its own (`dataloader`, `suspended`), or is an import."""

_BY_CALLED = {
    NETWORK: r"(?:^|/)(?:socket|ssl|ftplib|smtplib)\.py |(?:^|/)(?:http|urllib|urllib3|requests"
    r"|httpx|aiohttp|socketserver)(?:/|\.py )",
    PROCESS: r"(?:^|/)(?:multiprocessing/|subprocess\.py |concurrent/futures/process\.py )",
    THREAD: r"(?:^|/)(?:threading|queue)\.py |(?:^|/)concurrent/futures/",
}
"""What a wait in a pipe or at a lock is for, by the function of the library that was called."""


def _compiled(patterns: dict[int, str]) -> dict[int, re.Pattern[str]]:
    return {kind: re.compile(rf"(?:{pattern})$") for kind, pattern in patterns.items()}


_OWN = _compiled(_BUILT_IN), _compiled(_LIBRARY)
_ALL = _compiled(_WHOLE)
_CALLED = {kind: re.compile(pattern) for kind, pattern in _BY_CALLED.items()}


def own_kinds(functions: pd.DataFrame) -> Ints:
    """Per function (``file``, ``name``) what its own time waits for; -1 for what does not wait."""
    return np.array([_own_kind(*one) for one in _pairs(functions)], np.int64)


def whole_kinds(functions: pd.DataFrame) -> Ints:
    """Per function the kind of file access that all of its time is; -1 for others."""
    return np.array([_first(_ALL, place(*one)) for one in _pairs(functions)], np.int64)


def kind_of_call(file: str, name: str, kind: int) -> int:
    """The same wait by the function that the user called for it, where that says more."""
    if kind not in (PIPE, THREAD):
        return kind
    called = next((k for k, pattern in _CALLED.items() if pattern.search(place(file, name))), NONE)
    return kind if called == NONE else called


def is_aside(functions: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Which functions have their waits told elsewhere."""
    return np.array([bool(ASIDE.search(place(*one))) for one in _pairs(functions)], bool)


def place(file: str, name: str) -> str:
    """``torch/serialization.py load``, with slashes on every system."""
    return f"{file} {name}".replace("\\", "/")


def _pairs(functions: pd.DataFrame) -> list[tuple[str, str]]:
    return list(zip(functions["file"].astype(str), functions["name"].astype(str), strict=True))


def _own_kind(file: str, name: str) -> int:
    built_in, library = _OWN
    return _first(built_in, _key(name)) if file == BUILT_IN else _first(library, place(file, name))


def _key(name: str) -> str:
    """``socket.recv`` of either spelling of a built-in; ``.sleep`` where no module is known."""
    if found := _METHOD.match(name):
        return f"{found['owner'].rpartition('.')[2]}.{found['name']}"
    if found := _FUNCTION.match(name):
        module, _, own = found["name"].rpartition(".")
        return f"{module.rpartition('.')[2]}.{own}"
    module, _, own = name.rpartition(".")
    return f"{module.rpartition('.')[2]}.{own}" if module else name


def _first(patterns: dict[int, re.Pattern[str]], text: str) -> int:
    """The kind whose pattern holds from the start of a key, or anywhere in a place."""
    search = "match" if " " not in text else "search"
    return next((kind for kind, one in patterns.items() if getattr(one, search)(text)), NONE)
