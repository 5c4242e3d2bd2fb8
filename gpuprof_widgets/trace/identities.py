"""Users and hosts: their names as a record's texts and this process tell them, and texts without.

A name is taken away where it stands as a word: ``anna``, ``anna_run``, ``/anna/``, ``Anna's``, but
not in ``annabelle``, ``anna2`` or ``aten::anna``.
"""

from __future__ import annotations

import getpass
import platform
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

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


HIDDEN = "…"

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ALWAYS = re.compile(
    r"\w*(?:password|passwd|passphrase|credential|secret|(?:api|secret|access|private)key)s?"
)
"""Words that make whatever is called so a secret."""
_AT_THE_END = frozenset(["token", "auth", "authorization", "cookie", "cookies", "bearer", "pwd"])
_OF_HEADERS = frozenset(["authorization", "cookie"])
"""Of HTTP, whose value is the rest of the line."""
_STAGES = frozenset(["prod", "production", "dev", "staging", "value"])
"""What may follow in the name of a variable: ``TOKEN_PROD``."""
_OF_TEXT = frozenset(
    re.findall(
        r"[\w-]+",
        "pad eos bos unk mask sep cls special start end first last next new stop prompt image "
        "audio video text input output max min num per by each decode decoder sample class",
    )
)
"""Before ``token``: one that a tokenizer makes."""
_KINDS_OF_KEYS = frozenset(
    re.findall(
        r"[\w-]+",
        "api access secret private auth ssh signing encryption master account license deploy "
        "service subscription wandb openai anthropic huggingface hf aws github",
    )
)

_NAMED = re.compile(
    r"(?:(?<![\w.-])(?!(?<=%)[\dA-F]{2})|(?<=%[\dA-F]{2}))(?P<name>[\w.-]++)"
    r"(?P<mark>\\*[\"']?\]?\s*+(?::=|:(?!:)|=>|=(?!=)|%3D)\s*+|\s++(?!-))"
)
"""A name and what may stand between it and its value (blanks behind an option alone)."""
_QUOTED = re.compile(
    r"(?:[bfru]{1,2}(?=\\*[\"']))?(?P<quote>\\{0,31}(?:\"{3}|'{3}|[\"'])).*?(?:(?<!\\)(?P=quote)|\Z)",
    re.DOTALL | re.IGNORECASE,
)
_BARE = re.compile(r"(?:[^\s\"'\\&]|\\++(?![\"']))+")
_LINE = re.compile(r"[^\r\n\"']+")
_BRACKET = re.compile(r"[\[({]|[\])}]")
_LITERAL = re.compile(r"(?:none|null|true|false|…)", re.IGNORECASE)
_NUMBER = re.compile(r"(?:[\s\[\](){},.\d+-]|(?<=\d)e)*", re.IGNORECASE)
_FORM = re.compile(
    r"\b(?:hf_(?:[A-Za-z0-9]{20,}|(?=[A-Za-z]*\d)[A-Za-z0-9]{12,})|gh[pousr]_[A-Za-z0-9]{16,}"
    r"|github_pat_\w{16,}|glpat-[\w-]{16,}|(?:AKIA|ASIA)[A-Z0-9]{12,}|xox[abeprs]-[\w-]{10,}"
    r"|sk-(?=[\w-]*\d)[\w-]{16,}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?)"
    r"|npm_[A-Za-z0-9]{30,}"
    r"|(?<=\bBearer )[\w.~+/=-]{6,}|(?<=\bbearer )(?=\S*\d|\S{20})[\w.~+/=-]{6,}"
    r"|(?<=\bBasic )(?=[\w+/]*\d)[\w+/]{8,}={0,2}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|(?<=://)(?:[^/\s:@]*:[^/\s@]+|[^/\s:@?#]+)(?=@)",
    re.DOTALL,
)
"""Tokens of Hugging Face, GitHub, GitLab, AWS, Slack, OpenAI, Google and npm, JSON web tokens,
HTTP's authorization, private keys, and a name, password or token in an address."""
_MAYBE = re.compile(
    r"hf_|npm_|gh[pousr]_|github_pat|glpat|AKIA|ASIA|xox|sk-|AIza|eyJ|://|PRIVATE KEY"
    r"|(?i:token|secret|pass|pwd|credential|auth|cookie|bearer|basic|key)"
)


def names_secret(key: str, *, of_number: bool = False) -> bool:
    """Whether what is called so is a secret; a number called ``token`` is none."""
    always, at_the_end = _words_of_secret(key)
    return always or (at_the_end and not of_number)


@lru_cache(maxsize=10_000)
def _words_of_secret(key: str) -> tuple[bool, bool]:
    words = [word.lower() for word in _WORD.findall(key)]
    if not words:
        return False, False
    *before, last = words
    if key.isupper() and before and last in _STAGES:
        *before, last = before
    of_kind = any(
        word in ("key", "keys", "tokens") and kind in _KINDS_OF_KEYS
        for kind, word in pairwise(words)
    )
    variable = key.isupper() and (last == "key" or (bool(before) and last == "pass"))
    at_the_end = last in _AT_THE_END and not _OF_TEXT & set(words)
    return of_kind or any(map(_ALWAYS.fullmatch, words)), at_the_end or variable


def without_secrets(text: str) -> str:
    """The text with an ellipsis where a secret stood."""
    if not _MAYBE.search(text):
        return text
    text = _FORM.sub(HIDDEN, text)
    parts: list[str] = []
    at = 0
    for named in _NAMED.finditer(text):
        if named.start() < at or not _says_secret(named):  # the first: within a value
            continue
        end = _end_of_value(text, named)
        if _is_secret(text[named.end() : end], named["name"]):
            parts += text[at : named.end()], HIDDEN
            at = end
    return "".join([*parts, text[at:]])


def _end_of_value(text: str, named: re.Match[str]) -> int:
    """Where the value ends that begins behind a name: rather too late than too early."""
    start = named.end()
    if quoted := _QUOTED.match(text, start):
        return quoted.end()
    if text.startswith(("[", "(", "{"), start):
        return _end_of_brackets(text, start)
    value = (_LINE if _is_of_header(named["name"]) else _BARE).match(text, start)
    return start + len(value[0].rstrip(")]}>,;")) if value else start


def _end_of_brackets(text: str, start: int) -> int:
    depth = 0
    for bracket in _BRACKET.finditer(text, start):
        depth += 1 if bracket[0] in "[({" else -1
        if depth == 0:
            return bracket.end()
    return len(text)


def _says_secret(named: re.Match[str]) -> bool:
    """Whether a name and what stands behind it announce a secret; ``token: str`` is code."""
    name, mark = named["name"], named["mark"].strip()
    if not mark and not name.startswith("--"):
        return False
    is_code = mark == ":" and not name.isupper() and not _is_of_header(name)
    return names_secret(name, of_number=is_code)


def _is_secret(value: str, name: str) -> bool:
    if not value or _LITERAL.fullmatch(value):
        return False
    return names_secret(name, of_number=_NUMBER.fullmatch(value) is not None)


def _is_of_header(name: str) -> bool:
    words = _WORD.findall(name)
    return bool(words) and words[-1].lower() in _OF_HEADERS


def without_values_of_options(items: Sequence[Any]) -> list[Any]:
    """The items of a command line, with an ellipsis behind an option like ``--password``."""
    before = ["", *items][: len(items)]
    return [
        HIDDEN if _is_option(option) else item for option, item in zip(before, items, strict=True)
    ]


def _is_option(item: Any) -> bool:
    option = isinstance(item, str) and item.startswith("--") and "=" not in item
    return option and names_secret(item)
