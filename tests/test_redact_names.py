"""Users' names and secrets that only args, annotations and the like give away: not in the file.

Every member of a saved profile is unpacked and searched, in every way in which text may stand.
"""

from __future__ import annotations

import getpass
import gzip
import itertools
import json
import platform
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuprof_widgets.profiles import Profile, load
from gpuprof_widgets.trace.identities import Identities
from gpuprof_widgets.trace.model import Record
from gpuprof_widgets.trace.redact import redacted
from tests.traces import annotation, kernel, op, runtime, trace_of

pytestmark = pytest.mark.slow

FIGURES = ("ts", "dur", "track", "depth", "parent", "count", "launch", "op", "forward")


def saved(record: Record, path: Path) -> bytes:
    """All that is in the saved profile without what tells of its author, unpacked."""
    Profile(record.trace, record.calls, record.metadata, record.calls_of_workers).save(
        path, redact=True
    )
    with zipfile.ZipFile(path) as archive:
        held = [(name, archive.read(name)) for name in archive.namelist()]
    return b"\n".join(
        name.encode() + b"\n" + (gzip.decompress(data) if name.endswith(".gz") else data)
        for name, data in held
    )


def stands_in(text: str, data: bytes) -> bool:
    """Whether it stands there as UTF-8, UTF-16 or escaped as JSON, in whatever case."""
    forms = {text, text.lower(), text.upper(), text.capitalize()}
    written = {form.encode(code) for form in forms for code in ("utf-8", "utf-16-le", "utf-16-be")}
    written |= {json.dumps(form)[1:-1].encode() for form in forms}
    return any(form in data for form in written)


def renamed(record: Record, **columns: str) -> Record:
    """The record with these texts in its table of tracks."""
    tracks = record.trace.tracks.assign(
        **{key: [text] * len(record.trace.tracks) for key, text in columns.items()}
    )
    return replace(record, trace=replace(record.trace, tracks=tracks))


GIVEN_AWAY: dict[str, dict[str, Any]] = {
    "a path": {"file": "/home/zelda/run.py"},
    "a path of a Mac": {"file": "read /Users/zelda/x and more"},
    "a path of Windows": {"file": r"C:\Users\Zelda\x.py"},
    "a path of Windows, escaped": {"file": r"C:\\Users\\Zelda\\x.py"},
    "a path of WSL": {"file": "/mnt/c/Users/Zelda/x.py"},
    "a path on a cluster": {"file": "/export/vol1/home/zelda/x.py"},
    "an address of a file": {"file": "file:///home/zelda/x.py"},
    "an address, escaped": {"file": "file:%2F%2F%2Fhome%2Fzelda%2Fx.py"},
    "an option of a compiler": {"flags": "-O2 -I/home/zelda/include"},
    "an environment": {"dump": "SHELL=/bin/sh USER=zelda LANG=C"},
    "a key": {"user": "zelda"},
    "a list": {"stack": [{"at": ["/home/zelda/a.py"]}]},
    "an e-mail": {"note": "ask zelda@lab.example.com"},
    "a key of an object": {"sizes": {"/home/zelda/x.bin": 3}},
}


@pytest.mark.parametrize("how", GIVEN_AWAY)
def test_a_name_that_args_alone_give_away_is_gone(how: str, tmp_path: Path) -> None:
    record = renamed(
        trace_of(
            op("aten::mm", ts=0, dur=50, **GIVEN_AWAY[how]),
            annotation("zelda's step, zelda_run, run-zelda, (Zelda)", ts=60, dur=9),
            op("zeldas::mm", ts=80, dur=5, zelda=1, who={"zelda": "by zelda.", "n": ["zelda"]}),
            runtime("cudaLaunchKernel", ts=90, dur=2),
            kernel("gemm<float>", ts=95, dur=10, launched_by=3),
            notes=["saved by zelda", "zelda:zelda"],
            label="zelda.py",
        ),
        label="Zelda 0",
        process="python zelda",
    )
    data = saved(record, tmp_path / "clean.gpuprof")
    assert stands_in("zeldas::mm", data)
    assert not stands_in("zelda", data.replace(b"zeldas::mm", b""))
    again = load(tmp_path / "clean.gpuprof")
    for name in FIGURES:
        assert again.trace.slices[name].tolist() == record.trace.slices[name].tolist()
    told = Profile(record.trace, record.calls, record.metadata).operators().select_dtypes("number")
    assert again.operators().select_dtypes("number").sum().equals(told.sum())
    names = set(again.trace.slices["name"])
    assert "user's step, user_run, run-user, (user)" in names
    assert again.metadata["notes"] == ["saved by user", "user:user"]


@pytest.mark.parametrize("key", ["Host", "HostName", "USER"])
def test_what_stands_under_a_capitalised_key_is_gone_from_every_text(key: str) -> None:
    record = trace_of(
        op("a", ts=0, dur=9, **{key: "zelda7"}),
        annotation("on zelda7", ts=10, dur=1),
        op("b", ts=20, dur=9, about={key: "quagga7"}),
        annotation("on quagga7", ts=30, dur=1),
        devices=[{"index": 0, key: "wombat7"}],
        notes=["on wombat7"],
    )
    clean = redacted(record)
    left = f"{[*clean.trace.slices['name']]} {clean.trace.args} {clean.metadata}"
    assert not re.search("zelda|quagga|wombat", left)
    assert key not in clean.trace.args


CASES: list[Callable[[str], str]] = [str, str.lower, str.upper, str.casefold]


def test_letters_of_which_lower_case_tells_less_than_a_pattern() -> None:
    """``re.IGNORECASE`` takes i, ı and İ, and s and ſ, for one; no function of str does."""
    for letters in itertools.product("iıİIsſS", repeat=3):
        name = "".join(letters)
        texts = [f"{case(name)} ran" for case in CASES]
        names = Identities(texts, users=[name], hosts=[])
        assert [names.without(text) for text in texts] == ["user ran"] * len(texts), name
        for other in itertools.product("iıİIsſS", repeat=3):
            names.without("".join(other))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("мария", "МАРИЯ and Мария"),
        ("ALİ", "ali, ALİ and Ali"),
        ("İnci", "İnci run"),
        ("straße", "STRASSE 7"),
        ("josé", "JOSE\u0301"),
    ],
)
def test_a_name_is_gone_in_every_case(name: str, text: str) -> None:
    record = trace_of(op(text, ts=0, dur=9, at=f"/home/{name}/x.py", by=f"/home/{name.lower()}/x"))
    (clean,) = redacted(record).trace.slices["name"]
    assert set(re.findall(r"[^\W\d_]+", clean)) <= {"user", "user2", "and", "run"}


OF_THIS_RECORD = [
    *("record", "fwd", "volta", "sgemm", "fused", "ring", "attn", "proj", "layers", "encoder"),
    *("param", "comms", "quux"),
]


@pytest.mark.parametrize("name", OF_THIS_RECORD)
def test_words_of_kernels_and_ops_stay_whoever_is_called_so(name: str) -> None:
    names = [
        *("record_param_comms", "encoder.layers.0.attn.proj", "triton_poi_fused_quux_0"),
        *("flash_fwd", "quux of a step"),
    ]
    ops = [op(text, ts=10 * at, dur=9) for at, text in enumerate(names)]
    record = trace_of(
        *ops,
        op("at", ts=90, dur=1, at=f"/home/{name}/x/y.py", mail=f"{name}@example.com"),
        runtime("cudaLaunchKernel", ts=91, dur=2),
        kernel("volta_sgemm_fused_ring, flash_fwd_kernel, quux_0", ts=95, dur=1, launched_by=5),
        notes=[f"USER={name}"],
    )
    clean = redacted(record)
    assert clean.trace.slices["name"].tolist() == record.trace.slices["name"].tolist()
    assert clean.trace.args["at"].tolist() == ["y.py"]
    assert clean.trace.args["mail"].tolist() == ["user@host"]
    assert clean.metadata["notes"] == ["USER=user"]


def test_who_is_called_in_code_is_nobody() -> None:
    record = trace_of(op("f(user=item)", ts=0, dur=9), op("item of login=item", ts=10, dur=9))
    clean = redacted(record)
    assert clean.trace.slices["name"].tolist() == ["f(user=item)", "item of login=item"]


def test_a_librarys_kernel_keeps_all_but_paths_and_a_users_own_does_not() -> None:
    record = trace_of(
        op("zelda", ts=0, dur=9, at="/home/zelda/x.py"),
        runtime("cudaLaunchKernel", ts=1, dur=2),
        kernel("void at::f<key=a, token=b>(/home/zelda/my.cu:3)", ts=10, dur=1, launched_by=1),
        kernel("zelda_gemm", ts=12, dur=1, launched_by=1),
    )
    assert redacted(record).trace.slices["name"].tolist() == [
        "user",
        "cudaLaunchKernel",
        "void at::f<key=a, token=b>(my.cu:3)",
        "user_gemm",
    ]


def test_a_name_of_two_words_is_gone(tmp_path: Path) -> None:
    record = trace_of(
        op("a", ts=0, dur=9, file=r"C:\Users\Zelda Fitz\my code\x.py"),
        annotation("by Zelda", ts=10, dur=1),
        annotation("fitz ran", ts=12, dur=1),
    )
    data = saved(record, tmp_path / "clean.gpuprof")
    assert [name for name in ("zelda", "fitz") if stands_in(name, data)] == []


def test_this_process_gives_its_user_and_host_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "zelda")
    monkeypatch.setattr(platform, "node", lambda: "zeldas-laptop.local")
    monkeypatch.setattr(Path, "home", lambda: Path("/data/zfitz"))
    record = trace_of(op("zelda and zfitz on zeldas-laptop", ts=0, dur=9))
    assert redacted(record).trace.slices["name"].tolist() == ["user and user2 on host"]


def test_who_is_known_to_nobody_can_redact(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", unknown)
    monkeypatch.setattr(Path, "home", lambda: Path("/"))
    record = trace_of(op("a", ts=0, dur=9))
    assert redacted(record).trace.slices["name"].tolist() == ["a"]


USUAL = {
    "root": "TreeNode::root, root of the tree",
    "user": "user_annotation of a user",
    "ubuntu": "ubuntu 24.04",
    "admin": "an admin task",
    "test": "test step",
    "max": "max_pool2d",
    "adam": "Optimizer.step#Adam.step",
    "stream": "stream 7",
    "li": "li_solver of li",
    "anna": "annabelle, anna2 and aten::anna",
}


@pytest.mark.parametrize("name", USUAL)
def test_names_of_nobody_and_of_the_software_stay_as_words(name: str, tmp_path: Path) -> None:
    record = trace_of(
        op(USUAL[name], ts=0, dur=9, at=f"/home/{name}/secret/run.sh", mail=f"{name}@example.com")
    )
    record = replace(record, metadata={**record.metadata, "notes": [f"USER={name}"]})
    clean = redacted(record)
    assert clean.trace.slices["name"].tolist() == [USUAL[name]]
    assert clean.trace.args["at"].tolist() == ["run.sh"]
    assert clean.trace.args["mail"].tolist() == ["user@host"]
    nobody = ("root", "user", "ubuntu", "admin", "test")
    assert clean.metadata["notes"] == [f"USER={name if name in nobody else 'user'}"]


# Secrets

SECRET = "Zx9hunter2Qq"
TEXTS = [
    f"HF_TOKEN={SECRET} python train.py",
    f"export AWS_SECRET_ACCESS_KEY='{SECRET}'",
    f"OPENAI_KEY={SECRET}",
    f"train.py --password {SECRET} --epochs 3",
    f"INFO: token={SECRET}",
    f"https://h/?access_token={SECRET}&api_key={SECRET}",
    f"--env=HF_TOKEN={SECRET}",
    f"url=https://h/?token={SECRET}",
    f'x="password={SECRET}"',
    f"cmd='HF_TOKEN={SECRET} python x.py'",
    f"HF_TOKEN: {SECRET}",
    f"OPENAI_KEY: {SECRET}",
    f"Authorization: token {SECRET}",
    f"Cookie: a=b; sid={SECRET}",
    f'os.environ["HF_TOKEN"] = "{SECRET}"',
    f"password = b'{SECRET}', token=Rb'{SECRET}', token=f\"{SECRET}\"",
    f"password=[{SECRET}]",
    f"{{'token': ['a', ('b', '{SECRET}')]}}",
    f"password=p@ss,{SECRET}",
    f'password="a\\"{SECRET}"',
    f'password="""a"{SECRET}"""',
    f"password='an unclosed quote\nand {SECRET}",
    f"https://h/?a%3D3%26token%3D{SECRET}",
    *(f"{name}={SECRET}" for name in ("PGPASSWORD", "MYPASSWORD", "DBPASSWORD", "API_TOKENS")),
    *(f"{name}={SECRET}" for name in ("OPENAI_API_KEYS", "TOKEN_PROD", "TOKEN_VALUE", "DB_PASS")),
    *(f"{name}={SECRET}" for name in ("SECRETKEY", "ACCESSKEY", "wandb_key", "cookies", "pwd")),
    f"npm_{SECRET}{SECRET}{SECRET}",
    f"authorization bearer {SECRET}",
    f"https://{SECRET}@github.com/me/x.git",
    f'train.py --hf-token "{SECRET}"',
    f'{{"password": "{SECRET}"}}',
    rf"{{\"api_key\": \"{SECRET}\"}}",
    f"{{'db_passwd': '{SECRET}'}}",
    f"password: {SECRET}",
    f"Authorization: Bearer {SECRET}",
    f"https://zelda:{SECRET}@example.com/x",
    f"postgres://:{SECRET}@db/x",
    f"clone with ghp_{SECRET}{SECRET}",
    f"hf_{SECRET}{SECRET}",
    f"github_pat_{SECRET}_{SECRET}",
    f"key AKIA{SECRET.upper()}",
    f"sk-proj-{SECRET}{SECRET}",
    f"eyJhbGciOi{SECRET}.eyJzdWIi{SECRET}.abc_{SECRET}",
    f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_secret_in_any_text_is_gone(text: str, tmp_path: Path) -> None:
    record = renamed(
        trace_of(
            op("aten::mm", ts=0, dur=9, note=text, deep={"a": [text]}),
            annotation(text, ts=10, dur=1),
            notes=[text],
            label=text,
        ),
        label=text,
    )
    assert not stands_in(SECRET, saved(record, tmp_path / "clean.gpuprof"))


ARGS: list[dict[str, Any]] = [
    {"HF_TOKEN": SECRET},
    {"password": SECRET},
    {"db password": 1234567891},
    {"apiKey": SECRET},
    {"x-api-key": SECRET},
    {"AWS_ACCESS_KEY_ID": SECRET},
    {"Authorization": SECRET},
    {"Set-Cookie": SECRET},
    {"STRIPE_KEY": SECRET},
    {"env": {"A": SECRET}},
    {"config": {"auth": {"client_secret": SECRET}, "token": SECRET}},
    {"argv": ["train.py", "--password", SECRET]},
    {"credentials": [SECRET]},
]


@pytest.mark.parametrize("args", ARGS, ids=lambda args: next(iter(args)))
def test_a_secret_under_its_name_is_gone(args: dict[str, Any], tmp_path: Path) -> None:
    data = saved(trace_of(op("a", ts=0, dur=9, **args)), tmp_path / "clean.gpuprof")
    assert not stands_in(SECRET, data)
    assert not stands_in("1234567891", data)


ORDINARY: dict[str, Any] = {
    "Token count": 5,
    "num_tokens": 128,
    "max_new_tokens": 20,
    "token": 7,
    "token_ids": [1, 2],
    "pad_token": "<pad>",
    "key_padding_mask": "True",
    "key": "value",
    "sort_key": "cpu_total",
    "cache_key": "mm_3_4",
    "Key Dims": [[3, 4]],
    "author": "x",
    "Sequence number": 3,
    "command": "generate(token=5, max_tokens=20, key=None, pad_token=x) --max-tokens 3",
    "code": "def step(token: str, key: Tensor) -> Tensor: return password == None",
    "kernel": "void cub::DeviceRadixSortKernel<Key, int>(key: float)",
    "flags": "--tokenizer gpt2 --key-dim 64 key=3 KEYS=4",
    "url": "https://pytorch.org/docs",
    "eos_token": "</s>",
    "token_embedding": "Embedding",
    "key_proj": "Linear",
    "passes": "forward_pass=a backward_pass: b, PASS: 3 tests",
    "layers": "key_proj: Linear, token_embedding=Embedding num_tokens=[3, 4] tokens: ['a', 'b']",
    "TOKEN": 50256,
    "sizes": "TOKEN: 5, EOS_TOKEN=</s> PAD_TOKEN: <pad> token=[1, 2e3] MAX_TOKENS: many",
    "words": "the bearer of tokens",
    "basic": "Basic BlockForward, sk-learn, hf_model_forward, sketch",
}


def test_ordinary_args_stay() -> None:
    clean = redacted(trace_of(op("a", ts=0, dur=9, **ORDINARY)))
    assert {key: values.iloc[0] for key, values in clean.trace.args.items()} == {
        key: value for key, value in ORDINARY.items() if key != "Sequence number"
    }


def test_no_op_or_kernel_of_a_real_trace_is_changed(shared_record: Record) -> None:
    """Analyses know ops and kernels by their names."""
    clean = redacted(shared_record)
    written = shared_record.trace.slices["category"].isin(["cpu_op", "kernel", "cuda_runtime"])
    before = shared_record.trace.slices.loc[written, "name"].astype(str)
    assert clean.trace.slices.loc[written, "name"].astype(str).tolist() == before.tolist()
    assert list(clean.trace.args) == list(shared_record.trace.args)
