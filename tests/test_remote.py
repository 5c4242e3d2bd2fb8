"""Traces at URLs: in memory, and from a web server of this machine."""

from __future__ import annotations

import gzip
import logging
import pickle
import re
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest

import gpuprof_widgets
from gpuprof_widgets.exceptions import TraceError
from gpuprof_widgets.many_ranks.files import trace_files
from gpuprof_widgets.trace import remote
from gpuprof_widgets.trace.archive import save
from gpuprof_widgets.trace.remote import RemotePath, is_url, path_of, shown
from tests.command_lines import gpuprof, small_trace
from tests.job import STARTS, in_lockstep, saved
from tests.records import assert_same_trace
from tests.traces import op, trace_of

pytestmark = pytest.mark.slow

Capsys = pytest.CaptureFixture[str]

SECRET = "s3cr3t"
JSON = b'{"traceEvents": [{"ph": "X", "name": "work", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]}'

MOVED = {
    "moved.json": f"/status500?token={SECRET}",
    "away.json": f"ftp://h/x?{SECRET}",
    "strange.json": f"weird:/x?sig={SECRET}",
}


class Handler(SimpleHTTPRequestHandler):
    """Files of a folder and, for some names, answers that go wrong."""

    protocol_version = "HTTP/1.1"
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        name, _, query = self.path.rpartition("/")[2].partition("?")
        if name.startswith("signed") and query != f"X-Amz-Signature={SECRET}/+=":
            self.send_error(403)
        elif name.startswith("status"):
            self.send_error(int(name.removeprefix("status")))
        elif name == "cut.json":
            self._answer(JSON, length=len(JSON) + 9)
        elif name == "page.json":
            self._answer(b"<!DOCTYPE html><p>Log in", kind="text/html")
        elif name == "packed.json":
            self._answer(gzip.compress(JSON), encoding="gzip")
        elif name == "half_packed.json":
            self._answer(gzip.compress(b"no trace" * 99)[:20], encoding="gzip")
        elif name in MOVED:
            self.send_response(302)
            self.send_header("Location", MOVED[name])
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif name == "silent.json":
            time.sleep(1)
            self.close_connection = True
        elif self.path.startswith("http://"):  # asked as a proxy
            self._answer(JSON)
        else:
            super().do_GET()

    def _answer(
        self, body: bytes, *, kind: str = "application/json", encoding: str = "", length: int = -1
    ) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body) if length < 0 else length))
        if encoding:
            self.send_header("Content-Encoding", encoding)
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = length > len(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@contextmanager
def serving(folder: Path, asked: list[str]) -> Iterator[str]:
    handler = type("_Handler", (Handler,), {"asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def asked() -> list[str]:
    """The paths that the server was asked for."""
    return []


@pytest.fixture
def server(tmp_path: Path, asked: list[str]) -> Iterator[str]:
    """The address of a server of the files in ``tmp_path``."""
    with serving(tmp_path, asked) as address:
        yield address


@pytest.fixture
def memory() -> Iterator[Any]:
    """Fsspec's file system in memory, empty."""
    system = fsspec.filesystem("memory")
    system.rm("/", recursive=True) if system.ls("/") else None
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def copied(system: Any, folder: Path, to: str) -> None:
    """Copy the files of a folder into memory."""
    for file in folder.iterdir():
        system.pipe_file(f"{to}/{file.name}", file.read_bytes())


def error_of(*given: Any) -> str:
    """The message of the error in opening it, whose traceback tells nothing of other packages."""
    with pytest.raises(TraceError) as caught:
        gpuprof_widgets.load(*given)
    printed = "".join(traceback.format_exception(caught.value))
    assert "aiohttp" not in printed
    assert SECRET not in printed
    return str(caught.value)


class TestWhatIsAUrl:
    @pytest.mark.parametrize(
        "text", ["s3://bucket/a.json", "gs://b", "memory://", "HTTPS://h/a?b", "zip://a::s3://b/c"]
    )
    def test_a_scheme_with_two_slashes(self, text: str) -> None:
        assert is_url(text)
        assert isinstance(path_of(text), RemotePath)

    @pytest.mark.parametrize(
        "text", ["C:/a.json", "c://a.json", "a:b.json", "./s3://a", "s3:/a", "/a://b", "-"]
    )
    def test_other_names_are_files(self, text: str) -> None:
        assert path_of(text) == Path(text)
        assert not isinstance(path_of(text), RemotePath)
        assert shown(text) == text

    @pytest.mark.parametrize(
        ("text", "path"),
        [
            ("file:///a/b.json", "/a/b.json"),
            ("FILE://localhost/a.json", "/a.json"),
            ("local:///a?b=c.json", "/a?b=c.json"),
            ("file://a.json", "a.json"),
        ],
    )
    def test_files_of_this_machine_are_files(self, text: str, path: str) -> None:
        """All that holds for them holds then: pipes are refused, inputs are not overwritten."""
        assert path_of(text) == Path(path)
        assert not isinstance(path_of(text), RemotePath)

    def test_the_local_disk_has_none(self) -> None:
        with pytest.raises(TraceError, match="this is a URL"):
            RemotePath.of("s3://b/a.json").stat()

    @pytest.mark.parametrize(
        ("url", "text"),
        [
            ("https://h/a.json?X-Amz-Signature=s3cr3t/x", "https://h/a.json"),
            ("https://h/a.json#s3cr3t", "https://h/a.json"),
            ("https://u:s3c/s3cr3t@h/a.json", "https://h/a.json"),
            ("https://s3cr3t@h/a@b.json", "https://h/a@b.json"),
            ("ftp://u:p@s3cr3t@h/a.json", "ftp://h/a.json"),
            ("sftp://u:123/s3cr3t@h/a.json", "sftp://h/a.json"),
            ("filecache::ftp://u:s3@s3cr3t@h/a", "filecache::ftp://h/a"),
            ("zip://a.json::https://u:s3cr3t@h/a.zip?s3cr3t", "zip://a.json::https://h/a.zip"),
            ("s3://b/a.json?token=s3cr3t", "s3://b/a.json"),
            ("abfs://box@account/a.json", "abfs://box@account/a.json"),
            ("s3://b/rank?.json", "s3://b/rank?.json"),
        ],
    )
    def test_passwords_and_queries_are_not_shown(self, url: str, text: str) -> None:
        path = RemotePath.of(url)
        assert (str(path), path.url) == (text, url)
        if url.startswith("http"):
            assert str(RemotePath.of(url.replace("http", "HTTP"))) == text
        assert path.name == text.rpartition("/")[2]
        assert SECRET not in repr(path)

    def test_paths_travel_to_other_processes(self) -> None:
        path = RemotePath.of("https://u:p@h//a.json?token=x")
        again = pickle.loads(pickle.dumps(path))
        assert (again, again.url, hash(again)) == (path, path.url, hash(path))

    def test_what_is_in_it_is_named_by_its_url(self) -> None:
        assert str(RemotePath.of("s3://b/run") / "a" / "b.json") == "s3://b/run/a/b.json"
        assert str(RemotePath.of("s3://b/run/") / "a.json") == "s3://b/run/a.json"
        assert str(RemotePath.of("s3://b/run/a.json").with_suffix(".x")) == "s3://b/run/a.x"


class TestLoad:
    @pytest.mark.parametrize("where", ["memory://a/", "http://"])
    @pytest.mark.parametrize("packed", [False, True])
    def test_it_is_what_the_file_holds(
        self, tmp_path: Path, memory: Any, server: str, where: str, packed: bool
    ) -> None:
        file = tmp_path / ("run.json.gz" if packed else "run.json")
        file.write_bytes(gzip.compress(JSON) if packed else JSON)
        memory.pipe_file(f"/a/{file.name}", file.read_bytes())
        folder = f"{server}/" if where == "http://" else where
        here, there = gpuprof_widgets.load(file), gpuprof_widgets.load(folder + file.name)
        assert_same_trace(here.trace, there.trace)
        assert there.metadata == {**here.metadata, "source": folder + file.name}

    def test_what_the_server_packs_is_unpacked_by_our_readers(self, server: str) -> None:
        assert len(gpuprof_widgets.load(f"{server}/packed.json").trace) == 1

    @pytest.mark.parametrize("slash", ["", "/"])
    def test_a_folder_of_spans(self, tmp_path: Path, memory: Any, slash: str) -> None:
        for at in (0, 9):
            text = JSON.replace(b'"ts": 1', f'"ts": {at}'.encode())
            (tmp_path / f"host_1.{at}.pt.trace.json").write_bytes(text)
        (tmp_path / "notes.txt").write_text("no trace")
        (tmp_path / ".hidden.json").write_bytes(JSON)
        copied(memory, tmp_path, "/a/run")
        memory.pipe_file("/a/run/below/other.json", JSON)
        here = gpuprof_widgets.load(tmp_path)
        there = gpuprof_widgets.load(f"memory://a/run{slash}")
        assert_same_trace(here.trace, there.trace)
        assert there.metadata["source"] == f"memory://a/run{slash}"
        assert there.metadata["notes"] == here.metadata["notes"]
        assert len(there.trace) == 2
        listed = gpuprof_widgets.load([f"memory://a/run/{file['source']}" for file in spans(there)])
        assert_same_trace(here.trace, listed.trace)
        assert listed.metadata["source"] == "memory://a/run"
        assert spans(listed) == spans(there)

    def test_a_folder_of_a_web_server(self, tmp_path: Path, server: str) -> None:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "a b.json").write_bytes(JSON)
        (tmp_path / "run" / "empty.txt").touch()
        profile = gpuprof_widgets.load(f"{server}/run/")
        assert profile.metadata["source"] == f"{server}/run/a%20b.json"

    def test_urls_of_one_name_and_other_queries_are_all_read(
        self, tmp_path: Path, server: str, asked: list[str]
    ) -> None:
        (tmp_path / "get").write_bytes(JSON)
        with pytest.raises(TraceError, match="taken at the same time"):
            gpuprof_widgets.load([f"{server}/get?id=1", f"{server}/get?id=2"])
        assert [path for path in asked if "id" in path] == ["/get?id=1", "/get?id=2"]

    def test_files_here_and_there(self, tmp_path: Path, memory: Any) -> None:
        (tmp_path / "a.json").write_bytes(JSON)
        memory.pipe_file("/b.json", JSON.replace(b'"ts": 1', b'"ts": 9'))
        profile = gpuprof_widgets.load([tmp_path / "a.json", "memory://b.json"])
        assert profile.metadata["source"] == f"{tmp_path} and elsewhere"
        assert [span["source"] for span in spans(profile)] == [
            str(tmp_path / "a.json"),
            "memory://b.json",
        ]

    def test_nothing_in_a_file_is_fetched(
        self, tmp_path: Path, server: str, asked: list[str]
    ) -> None:
        record = trace_of(op("aten::mm", ts=0, dur=9), source=f"{server}/other.json")
        save(record, tmp_path / "run.gpuprof")
        gpuprof_widgets.load(tmp_path / "run.gpuprof").report()
        assert asked == []
        gpuprof_widgets.load(f"{server}/run.gpuprof").report()
        assert asked == ["/run.gpuprof"]

    def test_a_proxy_of_the_environment(
        self, server: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("http_proxy", server)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        assert len(gpuprof_widgets.load("http://trace.invalid/run.json").trace) == 1
        assert asked == ["http://trace.invalid/run.json"]

    def test_fsspec_is_configured_by_its_own_settings(
        self, server: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from fsspec.config import conf

        monkeypatch.setitem(conf, "http", {"headers": {"Authorization": "x"}})
        options = remote._http_options()
        assert options["headers"] == {"Accept-Encoding": "identity", "Authorization": "x"}


def spans(profile: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = profile.metadata["spans"]
    return found


class TestErrors:
    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("none.json", "there is no such file; check the URL"),
            ("status403", "no permission to read it; check the credentials"),
            ("status500", "the server answered with the error 500; try again later"),
            ("cut.json", "it was cut short on the way; open it again"),
            ("page.json", "the server answered with a web page"),
            ("run", "the server answered with a web page.*ends in a slash"),
            ("run/", "this is a directory, and none of the 0 files"),
            ("empty.json", "the file is empty"),
            ("half.json.gz", "the gzip data ends at byte 20"),
            ("half_packed.json", "the gzip data ends at byte 20"),
            ("moved.json", "the server answered with the error 500"),
        ],
    )
    def test_of_a_web_server(self, tmp_path: Path, server: str, name: str, message: str) -> None:
        (tmp_path / "run").mkdir()
        (tmp_path / "empty.json").touch()
        (tmp_path / "half.json.gz").write_bytes(gzip.compress(b"no trace" * 99)[:20])
        error = error_of(f"{server}/{name}")
        assert error.startswith(f"{server}/{name}: ")
        assert re.search(message, error)
        assert "\n" not in error

    def test_a_server_that_says_nothing(self, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(remote, "SILENT_S", 0.1)
        assert "the server does not answer" in error_of(f"{server}/silent.json")

    def test_a_server_that_is_not_there(self, tmp_path: Path) -> None:
        with serving(tmp_path, []) as address:
            pass
        assert "the server cannot be reached" in error_of(f"{address}/run.json")

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("none.json", "there is no such file; check the URL"),
            ("empty.json", "the file is empty"),
            ("run", "this is a directory, and none of the 1 files in it is a trace"),
            ("report.nsys-rep", "--output report.sqlite report.nsys-rep"),
        ],
    )
    def test_of_other_schemes(self, memory: Any, name: str, message: str) -> None:
        memory.pipe_file("/a/empty.json", b"")
        memory.pipe_file("/a/run/notes.txt", b"no trace")
        memory.pipe_file("/a/report.nsys-rep", b"?")
        error = error_of(f"memory://a/{name}")
        assert error.startswith(f"memory://a/{name}: ")
        assert message in error

    def test_bytes_that_are_missing(self, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        memory.pipe_file("/a.json", JSON)
        monkeypatch.setattr(type(memory), "cat_file", lambda *_, **__: JSON[:-9])
        error = error_of("memory://a.json")
        assert f"only {len(JSON) - 9} of {len(JSON)} bytes arrived" in error
        memory.pipe_file("/run/a.json", JSON)
        assert error_of("memory://run").startswith("memory://run/a.json: only ")

    def test_a_beginning_is_no_longer_than_asked(self, tmp_path: Path, server: str) -> None:
        (tmp_path / "a.json").write_bytes(JSON)  # this server sends all of it whatever is asked
        assert remote.content(RemotePath.of(f"{server}/a.json"), 5) == JSON[:5]

    @pytest.mark.parametrize(
        ("missing", "url", "advice"),
        [
            ("fsspec.core", "s3://b/a.json", 'pip install "gpuprof-widgets[remote]"'),
            ("aiohttp", "https://h.invalid/a.json", 'pip install "gpuprof-widgets[remote]"'),
            ("s3fs", "s3://b/a.json", "pip install s3fs"),
            ("gcsfs", "gs://b/a.json", "pip install gcsfs"),
            ("paramiko", "sftp://h.invalid/a.json", "paramiko"),
        ],
    )
    def test_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch, missing: str, url: str, advice: str
    ) -> None:
        monkeypatch.setitem(sys.modules, missing, None)
        error = error_of(url)
        assert error.startswith(f"{url}: ")
        assert advice in error

    def test_a_url_that_was_made_a_path(self) -> None:
        assert "as text, not as a Path" in error_of(Path("s3://bucket/run.json"))
        error_of(Path(f"https://h/a.json?sig={SECRET}"))
        assert "as text" not in error_of(Path("c:/run.json"))

    def test_an_unknown_scheme(self) -> None:
        assert "fsspec knows no nonsense://" in error_of("nonsense://b/a.json")

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            (PermissionError("Access Denied"), "no permission"),
            (type("NoCredentialsError", (Exception,), {})(), "no valid credentials for memory://"),
            (type("HttpError", (Exception,), {"code": 403})(), "no permission"),
            (type("IncompleteReadError", (Exception,), {})(), "it was cut short"),
            (IsADirectoryError(), "this is a directory"),
            (ConnectionResetError(), "the server cannot be reached"),
            (KeyError(f"https://h/?token={SECRET}"), "cannot be read (KeyError); check the URL"),
            (
                type("TooManyRedirects", (Exception,), {"status": 0})(),
                "the server redirects without end",
            ),
        ],
    )
    def test_of_other_packages(
        self, memory: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
    ) -> None:
        def failing(*_: Any, **__: Any) -> None:
            raise error

        monkeypatch.setattr(type(memory), "info", failing)
        assert f"memory://a.json: {message}" in error_of("memory://a.json")
        monkeypatch.setattr(type(memory), "info", lambda *_, **__: {"type": "file", "size": 1})
        monkeypatch.setattr(type(memory), "cat_file", failing)
        assert f"memory://a.json: {message}" in error_of("memory://a.json")

    def test_other_packages_print_no_tracebacks(
        self, memory: Any, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
    ) -> None:
        def failing(*_: Any, **__: Any) -> None:
            logging.getLogger("gcsfs.retry").error("out of retries")
            logging.getLogger("ours").error("is printed")
            raise PermissionError

        monkeypatch.setattr(logging.getLogger(), "handlers", [])
        monkeypatch.setattr(type(memory), "info", failing)
        error_of("memory://a.json")
        assert capsys.readouterr().err == "is printed\n"


class TestSecrets:
    def test_a_signed_url_opens_and_does_not_show_its_signature(
        self, tmp_path: Path, server: str, capsys: Capsys
    ) -> None:
        (tmp_path / "signed.json").write_bytes(JSON + b"x")  # has a note
        url = f"{server}/signed.json?X-Amz-Signature={SECRET}/+="
        profile = gpuprof_widgets.load(url)
        assert profile.metadata["source"] == f"{server}/signed.json"
        assert profile.metadata["notes"]
        texts = [repr(profile), profile.report(), str(profile.metadata)]
        for words in (("findings", url), ("diff", url, url), ("view", url, "--no-open")):
            called = gpuprof(capsys, *words)
            assert called.code == 0
            texts += [called.out, called.err]
        shutil.rmtree(Path(called.out.strip()).parent)
        assert [text for text in texts if SECRET in text] == []

    @pytest.mark.parametrize("name", ["signed.json", "signed/none.json", "status500", "cut.json"])
    def test_errors_hide_it(self, server: str, name: str) -> None:
        assert error_of(f"{server}/{name}?token={SECRET}").startswith(f"{server}/{name}: ")
        with_login = server.replace("://", f"://user:{SECRET}@")
        assert error_of(f"{with_login}/{name}").startswith(f"{server}/{name}: ")


@pytest.fixture
def ranks_here(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    saved(folder, in_lockstep(STARTS))
    return folder


class TestRanks:
    @pytest.mark.parametrize("scheme", ["memory", "http"])
    @pytest.mark.parametrize("given", ["folder", "glob", "deep", "list"])
    def test_they_are_those_of_the_folder(
        self, ranks_here: Path, memory: Any, server: str, scheme: str, given: str
    ) -> None:
        copied(memory, ranks_here, "/run")
        folder = {"memory": "memory://run", "http": f"{server}/run"}[scheme]
        names = [f"run.rank{number}.gpuprof" for number in (2, 0, 1)]
        paths: Any = {
            "folder": f"{folder}/",
            "glob": f"{folder}/*.rank[0-9].gpuprof",
            "deep": re.sub("/run$", "/r*/run.rank*", folder),
            "list": [f"{folder}/{name}" for name in names],
        }[given]
        if (scheme, given) == ("http", "deep"):
            paths = f"{server}/run/run.rank*"
        here, there = gpuprof_widgets.ranks(ranks_here), gpuprof_widgets.ranks(paths)
        assert there.numbers == [0, 1, 2]
        assert [str(file) for file in trace_files(paths)] == [
            f"{folder}/{name}" for name in sorted(names)
        ]
        assert there.stragglers().equals(here.stragglers())
        assert there.notes == here.notes
        assert_same_trace(there[1].trace, here[1].trace)
        assert "rank 2" in there.report()

    def test_a_name_with_a_bracket_is_a_file(self, memory: Any) -> None:
        memory.pipe_file("/run/a[1].json", JSON)
        assert [*map(str, trace_files("memory://run/a[1].json"))] == ["memory://run/a[1].json"]

    def test_a_folder_is_no_match_of_a_glob(self, memory: Any) -> None:
        memory.pipe_file("/run/a.json", JSON)
        memory.pipe_file("/run/b.json/c.json", JSON)
        assert [*map(str, trace_files("memory://run/*.json"))] == ["memory://run/a.json"]

    def test_listings_are_never_those_of_before(
        self, memory: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        emptied: list[Any] = []
        monkeypatch.setattr(type(memory), "invalidate_cache", lambda it, *_: emptied.append(it))
        memory.pipe_file("/run/a.json", JSON)
        emptied.clear()
        trace_files("memory://run")
        assert emptied

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ("memory://run", "no trace in this folder"),
            ("memory://run/*.json", "no file matches"),
            ("memory://none/a.json", "there is no such file"),
            ("HTTP/run/*.json?token=s3cr3t", "with a query .* cannot be listed"),
            ("HTTP/r*/a.json", "only the name may be a glob"),
            ("zip://*.json::memory://run/a.zip", "chains of URLs .* are not read"),
        ],
    )
    def test_errors(
        self, ranks_here: Path, memory: Any, server: str, given: str, message: str
    ) -> None:
        memory.pipe_file("/run/notes.txt", b"no trace")
        with pytest.raises(TraceError, match=message) as caught:
            gpuprof_widgets.ranks(given.replace("HTTP", server))
        assert SECRET not in str(caught.value)

    def test_a_page_that_links_elsewhere_leads_nowhere(
        self, tmp_path: Path, server: str, asked: list[str]
    ) -> None:
        (tmp_path / "run").mkdir()
        links = [f"{server}/other.json", "../up.json", "below/b.json", "a.json?x=1", "a.json"]
        links += ["%2e%2e", "%2E", "x%2Fy.json", "b.json#c"]
        page = "".join(f"<a href='{link}'>x</a>" for link in links)
        (tmp_path / "run" / "index.html").write_text(f"<html>{page}http://h.invalid/run/c.json")
        assert [*map(str, trace_files(f"{server}/run/"))] == [f"{server}/run/a.json"]
        assert [*map(str, trace_files(f"{server}/run/*.json"))] == [f"{server}/run/a.json"]
        assert [*map(str, remote.files_in(RemotePath.of(f"{server}/run/")))] == [
            f"{server}/run/a.json"
        ]
        assert set(asked) == {"/run/", "/run/*.json"}  # which may be the name of a file

    def test_a_redirect_is_not_quoted(self, server: str) -> None:
        for name in ("away.json", "strange.json"):
            assert "cannot be read (" in error_of(f"{server}/{name}")

    @pytest.mark.parametrize("name", ["a::b.json", "a?x=1.json"])
    def test_names_that_no_url_can_have_are_told(self, memory: Any, name: str) -> None:
        memory.pipe_file(f"/run/{name}", JSON)
        memory.pipe_file("/run/c.json", JSON)
        for given in ("memory://run/", "memory://run/*.json"):
            with pytest.raises(TraceError, match="a name that no URL can have"):
                trace_files(given)

    def test_a_folder_with_the_ending_of_a_trace(self, memory: Any) -> None:
        memory.pipe_file("/run.json/a.json", JSON)
        assert [*map(str, trace_files("memory://run.json/"))] == ["memory://run.json/a.json"]


class TestCommands:
    def test_findings_view_and_convert(self, tmp_path: Path, memory: Any, capsys: Capsys) -> None:
        file = small_trace(tmp_path)
        copied(memory, tmp_path, "/a")
        url = "memory://a/small.gpuprof"
        here, there = (gpuprof(capsys, "findings", path) for path in (file, url))
        assert (there.code, there.out) == (0, here.out)
        page = tmp_path / "page.html"
        assert gpuprof(capsys, "view", url, "-o", page).code == 0
        assert "gemm" in page.read_text()
        assert gpuprof(capsys, "convert", url, tmp_path / "copy.gpuprof").code == 0

    def test_the_input_is_not_overwritten(self, tmp_path: Path, capsys: Capsys) -> None:
        file = small_trace(tmp_path)
        before = file.read_bytes()
        called = gpuprof(capsys, "convert", f"file://{file}", file)
        assert called.code == 1
        assert "this is the input" in called.err
        assert file.read_bytes() == before
