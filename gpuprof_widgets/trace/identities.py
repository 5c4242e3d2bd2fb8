"""Users and hosts: their names as a record's texts and this process tell them, and texts without.

A name is taken away where it stands as a word: ``anna``, ``anna_run``, ``/anna/``, ``Anna's``, but
not in ``annabelle``, ``anna2`` or ``aten::anna``.
"""

from __future__ import annotations

import getpass
import platform
import re
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path

_SHORTEST = 3
"""Letters of a name that is taken away as a word; ``li`` would be found everywhere."""

OF_NO_ONE = frozenset(
    re.findall(
        r"[\w-]+",
        "root user users username admin administrator test tester testing guest public shared "
        "default nobody daemon system service services localhost local host server node ubuntu "
        "debian centos fedora rocky opc vagrant docker podman container kubernetes runner vscode "
        "coder codespace gitpod jovyan jupyter notebook app apps appuser api web www data work "
        "workspace worker dev developer build builder jenkins gitlab github git circleci kaggle "
        "colab sagemaker azureuser azureml hadoop spark airflow mambauser conda condauser nvidia "
        "student demo example temp tmp home project projects team research model models lab me my "
        "self none null true false noreply no-reply info support ec2-user ssm-user www-data "
        "gitlab-runner",
    )
)
"""Accounts and machines that tell of nobody: usual in images, clouds and examples."""

OF_THE_FIELD = frozenset(
    re.findall(
        r"[\w-]+",
        "abs adam adamw add all any args array aten attention backward batch bert bias call cell "
        "chunk clip clone code compile compute conv copies copy cos count cpu cuda cudnn dask "
        "data dataset dense device dict div dot dtype embed emit epoch eval event exp fill flash "
        "float forward frame func function gather gelu gemm gpu grad graph half hash head hip "
        "index init input int item iter kernel key label lambda layer len line linear list loader "
        "log loop loss main map mark max mean memcpy memory memset merge min module mul nccl net "
        "norm now op open opt optimizer ops out output pad part path pool pow prod profile "
        "profiler python query queue rand range rank ray read relu repeat run scale select set "
        "sgd sin size slice softmax sort split sqrt stack start state step stop str stream sub "
        "sum sync tanh task tensor thread time to torch trace train triton type value view wait "
        "where window write zero zip annotations synchronisation record param params comm comms "
        "volta sgemm fused ring attn proj layers encoder decoder fwd bwd block blocks weight "
        "weights token tokens embedding",
    )
)
"""Words of ops, functions and of our own labels: taken away, they would change what is counted."""

_SEPARATOR = r"(?:[/\\]|%2F|%5C)+"
_MOUNT = (
    r"(?:[a-z]:|/(?:mnt|cygdrive|media)/[a-z](?=/users)"
    r"|/(?:export|exports|nfs|net|mnt|data|gpfs|lustre|beegfs|ceph|cluster|import|var|private|srv"
    r"|scratch|storage|vol\w*|system/volumes/data)(?:/[\w.-]+)?)?"
)
_HOME = re.compile(
    rf"(?:(?<![\w.])|(?<=-[ILD])){_MOUNT}{_SEPARATOR}(?:home|users){_SEPARATOR}"
    rf"(?P<name>\w[\w.-]*(?:[ ]\w[\w.-]*){{1,3}}(?=\\)|[^\s/\\:;,'\"`<>|()\[\]{{}}*?=&%…]+)"
    rf"(?P<inside>{_SEPARATOR})?",
    re.IGNORECASE,
)
"""A home folder, also as Windows has it, where names may have spaces."""

_CALLED = re.compile(
    r"(?<![^\W_])(?P<key>(?:USER(?:_?NAME)?|LOGNAME|LOGIN)\\*[\"']?=\\*[\"']?)(?P<name>[\w.@-]+)"
)
"""Of an environment; ``f(user=item)`` is code, and ``item`` nobody."""
_ADDRESS = re.compile(
    r"(?<![\w.+-])(?P<name>[\w.+-]+)@(?:[\w-]+\.)+(?!(?:so|dll|dylib|py)\b)[A-Za-z]{2,}(?!\.?\w)"
)


class Identities:
    """Names of users and hosts, and texts in which ``user`` and ``host`` stand for them."""

    def __init__(
        self,
        texts: Iterable[str],
        users: Iterable[str],
        hosts: Iterable[str],
        of_field: Iterable[str] = (),
    ) -> None:
        """``users`` and ``hosts``: those that the record calls so; ``texts``: all others in it.

        ``of_field``: names that libraries gave, without paths. Whoever is called as a word in these
        is not found by that word: taken away, it would change what is counted.
        """
        in_record = {_one_form(name) for name in (*users, *_users_in(texts))}
        machines = {_one_form(name) for name in (*hosts, platform.node())}
        machines |= {name.partition(".")[0] for name in machines}
        told = [*sorted(in_record), *sorted(_users_of_process() - in_record)]
        people = [name for name in dict.fromkeys(told) if _tells(name)]
        called = {name: f"user{n}" if n > 1 else "user" for n, name in enumerate(people, 1)}
        called |= {name: "host" for name in machines if _tells(name)}
        used = _Words({name: name for name in called}).found_in(of_field)
        self._words = _Words({name: put for name, put in called.items() if name not in used})

    def without(self, text: str) -> str:
        """The text without them, and without any e-mail address."""
        if "@" in text:
            text = _ADDRESS.sub("user@host", text)
        if "=" in text:
            text = _CALLED.sub(_unnamed, text)
        return self._words.replaced(text)


def is_home(path: str) -> bool:
    """Whether this is the home folder of somebody."""
    return _HOME.fullmatch(path) is not None


def _unnamed(found: re.Match[str]) -> str:
    return found[0] if found["name"].lower() in OF_NO_ONE else f"{found['key']}user"


def _one_form(name: str) -> str:
    return unicodedata.normalize("NFC", name.strip(" .-_")).lower()


def _tells(name: str) -> bool:
    return len(name) >= _SHORTEST and name not in OF_NO_ONE | OF_THE_FIELD and not name.isdigit()


def _users_in(texts: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for text in texts:
        for home in _HOME.finditer(text):
            if home["inside"] or "." not in home["name"]:  # not /home/train.py
                found |= {home["name"], *home["name"].split(" ")}
        if "=" in text:
            found |= {called["name"] for called in _CALLED.finditer(text)}
        if "@" in text:
            found |= {address["name"] for address in _ADDRESS.finditer(text)}
    return found


def _users_of_process() -> set[str]:
    """The user of this process: who saves a record has mostly recorded it."""
    found = set()
    for name in (getpass.getuser, lambda: Path.home().name):
        try:
            found.add(_one_form(name()))
        except (KeyError, OSError, ImportError, RuntimeError):  # nobody that the system knows
            continue
    return found


class _Words:
    """Names in every case and form of Unicode, and what stands for each."""

    def __init__(self, instead: Mapping[str, str]) -> None:
        """``instead``: by name, in lower case."""
        by_form = {form: put for name, put in instead.items() for form in _forms(name)}
        forms = sorted(by_form, key=len, reverse=True)
        self._instead = [by_form[form] for form in forms]
        any_of = "|".join(f"({re.escape(form)})" for form in forms) or "(?!)"
        self._pattern = re.compile(
            rf"(?:(?<![^\W_])(?<!::)|(?<=%2F)|(?<=%5C)|(?<=\\[nrt]))(?:{any_of})(?![^\W_])",
            re.IGNORECASE,
        )

    def replaced(self, text: str) -> str:
        """The text with other words in their places."""
        return self._pattern.sub(self._put, text)

    def found_in(self, texts: Iterable[str]) -> set[str]:
        """What stands for those that are in these texts."""
        return {self._put(found) for text in texts for found in self._pattern.finditer(text)}

    def _put(self, found: re.Match[str]) -> str:
        # By its number, as no function of str folds all that re.IGNORECASE does (i, ı and İ).
        return self._instead[(found.lastindex or 0) - 1]


def _forms(name: str) -> set[str]:
    """What may be written of a name so that ``re.IGNORECASE`` finds it: ``STRASSE`` of straße."""
    return {
        unicodedata.normalize(form, case(name))
        for case in (str.lower, str.upper, str.casefold)
        for form in ("NFC", "NFD")
    }
