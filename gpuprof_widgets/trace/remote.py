"""Traces at URLs, such as ``s3://bucket/run/trace.json.gz``: read, and listed, through fsspec.

fsspec is optional, and so are the packages that it needs for a scheme: errors name what to install.
Only a URL that the user gives is asked for, never one that a file names. No error has those of
other packages as its cause, because these quote URLs with their signatures.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path, PosixPath
from typing import Any, NoReturn, TypeVar
from urllib.parse import unquote

from gpuprof_widgets.exceptions import TraceError

SILENT_S = 60.0
"""Seconds after which a server that sends nothing is given up; a download may take any time."""

_SCHEME = r"[a-z][a-z0-9+.-]+"
_URL = re.compile(rf"(?:{_SCHEME}::)*{_SCHEME}://", re.IGNORECASE)
_LOCAL = re.compile(r"(?:file|local)://(?:localhost(?=/))?", re.IGNORECASE)
_HTTP = re.compile(r"https?://", re.IGNORECASE)
_LOGIN_OF_HTTP = re.compile(r"(?<=://)[^/?#]*@")
_PASSWORD = re.compile(r"(?<=://)[^/?#@]*:.*@", re.DOTALL)
"""``user:password@``, whatever is in the password; ``container@account`` is no secret."""
_QUERY = re.compile(r"\?[^/=]*=.*", re.DOTALL)
_QUERY_OF_HTTP = re.compile(r"[?#].*", re.DOTALL)
_MARKS = re.compile(r"[*?\[]")

_PACKAGES = {
    **dict.fromkeys(("http", "https"), '"gpuprof-widgets[remote]"'),
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("az", "abfs", "adl"), "adlfs"),
}
"""What to install for a scheme; for others fsspec's own message says it."""

_LOGGERS = ("fsspec", "s3fs", "gcsfs", "adlfs", "aiobotocore", "botocore", "aiohttp")

Answer = TypeVar("Answer")


def is_url(text: str) -> bool:
    """Whether this is a URL: ``C:/run.json`` and ``a:b.json`` are names of files."""
    return _URL.match(text) is not None


def shown(text: str) -> str:
    """Return a URL without password and query, where signatures are; other text as it is."""
    if not is_url(text):
        return text
    if _HTTP.search(text):
        text = _LOGIN_OF_HTTP.sub("", text)
    return _without_query(_PASSWORD.sub("", text))


def _without_query(url: str) -> str:
    return (_QUERY_OF_HTTP if _HTTP.search(url) else _QUERY).sub("", url)


class RemotePath(PosixPath):
    """A URL where messages and readers take a path: its text is the URL without what is secret.

    `url` is the whole URL. Nothing of the local disk has such a path.
    """

    _url = ""

    @classmethod
    def of(cls, url: str) -> RemotePath:
        """Return the path of a URL as it was typed."""
        scheme, colon, rest = url.partition("://")
        url = f"{scheme.lower()}{colon}{rest}"
        path = cls(shown(url))
        path._url = url
        return path

    @property
    def url(self) -> str:
        """The URL to ask for, with everything that was typed."""
        return self._url or re.sub(r"(?<=:)/(?!/)", "//", super().__str__(), count=1)

    def stat(self, *, follow_symlinks: bool = True) -> NoReturn:
        """Raise a `TraceError`: nothing of the local disk is meant."""
        raise TraceError(f"{self}: this is a URL, not a file of this machine.")

    def absolute(self) -> RemotePath:
        """Return the path: a URL is absolute."""
        return self

    def __truediv__(self, key: str | os.PathLike[str]) -> RemotePath:
        return RemotePath.of(_in_folder(str(self), os.fspath(key)))

    def __str__(self) -> str:
        return shown(self.url)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self.url == other.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __reduce__(self) -> tuple[Any, ...]:
        return RemotePath.of, (self.url,)


def path_of(given: str | os.PathLike[str]) -> Path:
    """Return a `RemotePath` for a URL, and a `Path` for anything else, such as ``file:///a.json``."""
    if isinstance(given, RemotePath):
        return given
    text = str(given)  # a path of universal_pathlib is a URL as well
    if local := _LOCAL.match(text):
        return Path(text[local.end() :])
    return RemotePath.of(text) if is_url(text) else Path(given)


def lost_slash(path: Path) -> str:
    """Return a hint for ``Path("s3://bucket/run.json")``, whose text is ``s3:/bucket/run.json``."""
    is_one = re.match(rf"{_SCHEME}:/[^/]", str(path), re.IGNORECASE)
    return " The URL of a trace is given as text, not as a Path." if is_one else ""


def common_folder(files: Sequence[Path]) -> Path:
    """Return the folder that all of these are in, URLs and absolute paths alike.

    Where they have none in common, its name says so.
    """
    if not any(isinstance(file, RemotePath) for file in files):
        return Path(os.path.commonpath([file.parent for file in files]))
    parents = [str(file).rpartition("/")[0] for file in files]
    parts = zip(*(parent.split("/") for parent in parents), strict=False)
    common = [part[0] for part in takewhile(lambda part: len(set(part)) == 1, parts)]
    is_one = len(common) > 2  # "https:" and "" are no folder
    return path_of("/".join(common) if is_one else f"{parents[0]} and elsewhere")


def is_folder(path: RemotePath) -> bool:
    """Whether this is a folder; of a web server, a URL that ends in a slash. False for nothing."""
    if _is_http(path):
        return path.url.endswith("/") and path.url == _without_query(path.url)
    state = _asked(path, _state)
    return state is not None and state["type"] == "directory"


def content(path: RemotePath, size: int | None = None) -> bytes:
    """Return the bytes of a file, or its first ``size``; a `TraceError` says why it failed."""
    if size is not None:
        part: bytes = _asked(path, lambda system, file: system.cat_file(file, start=0, end=size))
        return part[:size]  # a web server may send all of it
    data: bytes = _asked(path, lambda system, file: system.cat_file(file))
    if _is_http(path):
        if data[:64].lstrip().lower().startswith((b"<!doctype html", b"<html")):
            raise TraceError(
                f"{path}: the server answered with a web page, not with a trace: it may ask for a "
                "login. Name the file itself; the URL of a folder ends in a slash."
            )
        return data  # aiohttp has compared its length with what the server said
    state = _asked(path, _state) or {}
    if len(data) < (state.get("size") or 0):
        raise TraceError(
            f"{path}: only {len(data):,} of {state['size']:,} bytes arrived; open it again."
        )
    return data


def size_of(path: RemotePath) -> int:
    """Return the size of a file in bytes; where no server says it, the file is read for that."""
    state = _asked(path, lambda system, file: system.info(file))
    return int(len(content(path)) if state.get("size") is None else state["size"])


def files_in(folder: RemotePath) -> dict[RemotePath, int | None]:
    """Return the files in a folder, by name, with their sizes in bytes (None: unknown).

    Those of a web server are what its page of the folder links to, in that folder.
    """
    _check_listed(folder)
    inside, entries = _asked(
        folder, lambda system, at: (at.rstrip("/"), system.ls(at, detail=True))
    )
    found: dict[str, int | None] = {}
    for entry in entries:
        parent, _, name = entry["name"].rpartition("/")
        # The last part of a link may be a query, or lead out of its folder.
        plain = unquote(name)
        leads_away = re.search("[?#]", name) or plain in (".", "..") or "/" in plain
        elsewhere = _is_http(folder) and (parent != inside or leads_away)
        if name and entry["type"] == "file" and not elsewhere:
            found[name] = entry.get("size")
    return {_listed(folder, name): found[name] for name in sorted(found)}


def _listed(folder: RemotePath, name: str) -> RemotePath:
    """Return the file of that name in a folder; a `TraceError` if its URL would mean another."""
    file = RemotePath.of(_in_folder(folder.url, name))
    if "::" in name or file.url != _without_query(file.url):
        raise TraceError(
            f"{folder}: {name!r} in it has a name that no URL can have (:: or ?); name the other "
            "files one by one."
        )
    return file


def is_pattern(path: RemotePath) -> bool:
    """Whether this is a glob, such as ``s3://bucket/run/*.json``, and not the name of a file."""
    if not _MARKS.search(_without_query(path.url)):
        return False
    return not _asked(path, lambda system, file: system.exists(file))


def matching(pattern: RemotePath) -> list[RemotePath]:
    """Return the files that a glob matches, by name.

    On a web server only the last part of the URL may have marks: links are not followed.
    """
    _check_listed(pattern)
    if _is_http(pattern):
        folder, _, names = pattern.url.rpartition("/")
        if _MARKS.search(folder):
            raise TraceError(f"{pattern}: on a web server only the name may be a glob.")
        files = files_in(RemotePath.of(f"{folder}/"))
        return [file for file in files if fnmatchcase(file.name, names)]
    inside, found = _asked(pattern, lambda system, at: (at, system.glob(at, detail=True)))
    start = re.sub(r"[^/]*\Z", "", _MARKS.split(pattern.url, maxsplit=1)[0])
    before = inside[: len(inside) - len(pattern.url) + len(start)]
    folder_of_all = RemotePath.of(start)
    return [
        _listed(folder_of_all, name.removeprefix(before))
        for name, entry in sorted(found.items())
        if entry["type"] == "file"
    ]


def _is_http(path: RemotePath) -> bool:
    return _HTTP.match(path.url) is not None


def _in_folder(url: str, name: str) -> str:
    return f"{url}{name}" if url.endswith("/") else f"{url}/{name}"


def _check_listed(path: RemotePath) -> None:
    """Refuse what `RemotePath.of` could not name the files of."""
    if path.url != _without_query(path.url):
        raise TraceError(
            f"{path}: a folder or glob with a query (?...) cannot be listed; name its files one by "
            "one."
        )


def configuration() -> dict[str, Any]:
    """Return what fsspec is configured with in this process, for one that reads its URLs."""
    config = sys.modules.get("fsspec.config")  # where it was not imported nobody has set anything
    return dict(config.conf) if config is not None else {}


def configure(configuration: dict[str, Any]) -> None:
    """Configure fsspec as in the process for which this one reads URLs."""
    if configuration:
        from fsspec.config import conf

        conf.clear()
        conf.update(configuration)


def _asked(path: RemotePath, ask: Callable[[Any, str], Answer]) -> Answer:
    """Return what ``ask`` gets from the file system and the path in it, or raise a `TraceError`."""
    if "::" in path.url:
        raise TraceError(
            f"{path}: chains of URLs (::) are not read; give the URL of the file or archive itself."
        )
    try:
        return ask(*_file_system(path))
    except (TraceError, MemoryError):
        raise
    except Exception as error:  # other people's code may raise anything
        reason = _reason(error, path)
    raise TraceError(f"{path}: {reason}.")  # here it has no cause, whose text might hold a secret


def _state(system: Any, file: str) -> dict[str, Any] | None:
    try:
        return dict(system.info(file))
    except FileNotFoundError:
        return None


def _file_system(path: RemotePath) -> tuple[Any, str]:
    import logging

    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise TraceError(
            f'{path}: URLs are opened by fsspec: pip install "gpuprof-widgets[remote]"'
        ) from None
    # Tracebacks of other packages go to the handlers that a program has set up, and no others:
    # Python prints what is logged without any handler.
    for logger in map(logging.getLogger, _LOGGERS):
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
    system, inside = url_to_fs(path.url, **(_http_options() if _is_http(path) else {}))
    system.invalidate_cache()  # a run that goes on has more files than a minute ago
    return system, inside


def _http_options() -> dict[str, Any]:
    """Return fsspec's options for web servers, those that the user has configured first.

    Packed content is not unpacked on the way: our readers bound what it may grow to.
    """
    from aiohttp import ClientTimeout
    from fsspec.config import apply_config
    from fsspec.implementations.http import HTTPFileSystem

    given = apply_config(HTTPFileSystem, {})
    return {
        "timeout": ClientTimeout(total=None, sock_connect=SILENT_S, sock_read=SILENT_S),
        **given,
        "headers": {"Accept-Encoding": "identity", **given.get("headers", {})},
        "client_kwargs": {
            "auto_decompress": False,
            "trust_env": True,  # its proxies
            **given.get("client_kwargs", {}),
        },
    }


def _reason(error: Exception, path: RemotePath) -> str:
    """Return why something at a URL cannot be read, and what to do about it."""
    scheme = path.url.partition("://")[0]
    names = {kind.__name__ for kind in type(error).__mro__}
    status = getattr(error, "status", None) or getattr(error, "code", None)
    if isinstance(error, ImportError):
        package = _PACKAGES.get(scheme)
        advice = f"pip install {package}" if package else str(error)
        return f"{scheme}:// needs a package that is not installed: {advice}"
    if isinstance(error, ValueError) and "Protocol not known" in str(error):
        return f"fsspec knows no {scheme}://; check the URL (s3://, gs://, https://, ...)"
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        return "there is no such file; check the URL"
    if isinstance(error, PermissionError) or status in (401, 403):
        return (
            "no permission to read it; check the credentials that this machine has for it, or ask "
            "its owner (the signature of a URL may have expired)"
        )
    if any("Credential" in name for name in names):
        return f"no valid credentials for {scheme}:// on this machine; log in there, or set them"
    if isinstance(error, IsADirectoryError):
        return "this is a directory; name one of the files in it"
    if names & {"ClientPayloadError", "IncompleteReadError", "IncompleteRead"}:
        return "it was cut short on the way; open it again"
    if isinstance(error, TimeoutError):
        return "the server does not answer; check host and network, or try again later"
    if isinstance(error, ConnectionError) or names & {"ClientConnectionError", "ConnectionError"}:
        return "the server cannot be reached; check host, port and network"
    if "TooManyRedirects" in names:
        return "the server redirects without end; check the URL"
    if isinstance(status, int) and status >= 400:
        return f"the server answered with the error {status}; try again later"
    # What it says is left out: it may quote the URL, or another one to which a server redirects.
    return f"cannot be read ({type(error).__name__}); check the URL"
