"""Remove from texts the names of users and hosts, and passwords, tokens and keys.

Names come from the texts of a record and from this process. They are replaced where they stand as
words: in ``anna``, ``anna_run``, ``/anna/`` and ``Anna's``, but not in ``annabelle``, ``anna2`` or
``aten::anna``.

Secrets are known by their own form, or by the name before them: in values of args, and in texts as
``NAME=value``, ``"name": "value"`` and ``--name value``. The words of a name decide: ``HF_TOKEN``
and ``--db-password`` name secrets, ``max_new_tokens``, ``Token count``, ``pad_token`` and
``key_padding_mask`` do not. A bare value ends at the next blank, quote or ``&``; a quoted value
whose quotes are not closed goes on to the end.
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
"""Letters of a name that is replaced, at least; ``li`` would match everywhere."""

NOT_PERSONAL = frozenset(
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
"""Accounts and machines of no person: usual in images, clouds and examples."""

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
"""Words of ops, functions and our labels; if replaced, they would change what is counted."""

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
"""A home folder, also of Windows, where names may have spaces."""

_CALLED = re.compile(
    r"(?<![^\W_])(?P<key>(?:USER(?:_?NAME)?|LOGNAME|LOGIN)\\*[\"']?=\\*[\"']?)(?P<name>[\w.@-]+)"
)
"""A user in an environment variable; ``f(user=item)`` is code, and ``item`` is no user."""
_ADDRESS = re.compile(
    r"(?<![\w.+-])(?P<name>[\w.+-]+)@(?:[\w-]+\.)+(?!(?:so|dll|dylib|py)\b)[A-Za-z]{2,}(?!\.?\w)"
)


class Identities:
    """Names of users and hosts, which ``user`` and ``host`` replace in texts."""

    def __init__(
        self,
        texts: Iterable[str],
        users: Iterable[str],
        hosts: Iterable[str],
        of_field: Iterable[str] = (),
    ) -> None:
        """``users`` and ``hosts``: names under such keys of the record; ``texts``: its other texts.

        ``of_field``: names that libraries gave, without paths. A person's name that is a word in
        these is not replaced, because that would change what is counted.
        """
        in_record = {_normalized(name) for name in (*users, *_users_in(texts))}
        machines = {_normalized(name) for name in (*hosts, platform.node())}
        machines |= {name.partition(".")[0] for name in machines}
        names = [*sorted(in_record), *sorted(_users_of_process() - in_record)]
        people = [name for name in dict.fromkeys(names) if _is_personal(name)]
        instead = {name: f"user{n}" if n > 1 else "user" for n, name in enumerate(people, 1)}
        instead |= {name: "host" for name in machines if _is_personal(name)}
        used = _Words({name: name for name in instead}).matches_in(of_field)
        self._words = _Words({name: put for name, put in instead.items() if name not in used})

    def without(self, text: str) -> str:
        """Return the text without these names, and without any e-mail address."""
        if "@" in text:
            text = _ADDRESS.sub("user@host", text)
        if "=" in text:
            text = _CALLED.sub(_unnamed, text)
        return self._words.replaced(text)


def is_home(path: str) -> bool:
    """Whether this is the home folder of a user."""
    return _HOME.fullmatch(path) is not None


def _unnamed(match: re.Match[str]) -> str:
    return match[0] if match["name"].lower() in NOT_PERSONAL else f"{match['key']}user"


def _normalized(name: str) -> str:
    return unicodedata.normalize("NFC", name.strip(" .-_")).lower()


def _is_personal(name: str) -> bool:
    common = NOT_PERSONAL | OF_THE_FIELD
    return len(name) >= _SHORTEST and name not in common and not name.isdigit()


def _users_in(texts: Iterable[str]) -> set[str]:
    """Return the names of users in home folders, environment variables and e-mail addresses."""
    users: set[str] = set()
    for text in texts:
        for home in _HOME.finditer(text):
            if home["inside"] or "." not in home["name"]:  # not /home/train.py
                users |= {home["name"], *home["name"].split(" ")}
        if "=" in text:
            users |= {called["name"] for called in _CALLED.finditer(text)}
        if "@" in text:
            users |= {address["name"] for address in _ADDRESS.finditer(text)}
    return users


def _users_of_process() -> set[str]:
    """Return the user of this process, who has mostly recorded what is saved."""
    users = set()
    for name in (getpass.getuser, lambda: Path.home().name):
        try:
            users.add(_normalized(name()))
        except (KeyError, OSError, ImportError, RuntimeError):  # a user that the system lacks
            continue
    return users


class _Words:
    """Names in every case and form of Unicode, and the replacement of each."""

    def __init__(self, instead: Mapping[str, str]) -> None:
        """``instead``: the replacements, by name in lower case."""
        # The spellings of a name that ``re.IGNORECASE`` needs: ``STRASSE`` for straße.
        by_form = {
            unicodedata.normalize(form, case(name)): put
            for name, put in instead.items()
            for case in (str.lower, str.upper, str.casefold)
            for form in ("NFC", "NFD")
        }
        forms = sorted(by_form, key=len, reverse=True)
        self._instead = [by_form[form] for form in forms]
        any_of = "|".join(f"({re.escape(form)})" for form in forms) or "(?!)"
        self._pattern = re.compile(
            rf"(?:(?<![^\W_])(?<!::)|(?<=%2F)|(?<=%5C)|(?<=\\[nrt]))(?:{any_of})(?![^\W_])",
            re.IGNORECASE,
        )

    def replaced(self, text: str) -> str:
        """Return the text with all names replaced."""
        return self._pattern.sub(self._replacement, text)

    def matches_in(self, texts: Iterable[str]) -> set[str]:
        """Return the replacements of the names in these texts."""
        return {self._replacement(m) for text in texts for m in self._pattern.finditer(text)}

    def _replacement(self, match: re.Match[str]) -> str:
        # By group number, because no function of str folds as re.IGNORECASE does (i, ı and İ).
        return self._instead[(match.lastindex or 0) - 1]


HIDDEN = "…"

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ALWAYS = re.compile(
    r"\w*(?:password|passwd|passphrase|credential|secret|(?:api|secret|access|private)key)s?"
)
"""Words that make a name that of a secret wherever they stand in it."""
_AT_THE_END = frozenset(["token", "auth", "authorization", "cookie", "cookies", "bearer", "pwd"])
"""Words that make a name that of a secret at its end."""
_OF_HEADERS = frozenset(["authorization", "cookie"])
"""HTTP headers, whose value is the rest of the line."""
_STAGES = frozenset(["prod", "production", "dev", "staging", "value"])
"""Last words of variables that do not count: ``TOKEN_PROD``."""
_OF_TEXT = frozenset(
    re.findall(
        r"[\w-]+",
        "pad eos bos unk mask sep cls special start end first last next new stop prompt image "
        "audio video text input output max min num per by each decode decoder sample class",
    )
)
"""Words next to ``token`` that make it a tokenizer's."""
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
"""A name, and the mark between it and its value (blanks after an option only)."""
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
HTTP's authorization, private keys, and a name, password or token in a URL."""
_MAYBE = re.compile(
    r"hf_|npm_|gh[pousr]_|github_pat|glpat|AKIA|ASIA|xox|sk-|AIza|eyJ|://|PRIVATE KEY"
    r"|(?i:token|secret|pass|pwd|credential|auth|cookie|bearer|basic|key)"
)


def names_secret(key: str, *, of_number: bool = False) -> bool:
    """Whether a value under this key is a secret; a number under ``token`` is none."""
    always, at_the_end = _words_of_secret(key)
    return always or (at_the_end and not of_number)


@lru_cache(maxsize=10_000)
def _words_of_secret(key: str) -> tuple[bool, bool]:
    """Whether the words of a key name a secret always, and whether they do for text."""
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
    """Return the text with an ellipsis in place of each secret."""
    if not _MAYBE.search(text):
        return text
    text = _FORM.sub(HIDDEN, text)
    parts: list[str] = []
    at = 0
    for named in _NAMED.finditer(text):
        if named.start() < at or not _says_secret(named):  # before ``at``, it is part of a value
            continue
        end = _end_of_value(text, named)
        if _is_secret(text[named.end() : end], named["name"]):
            parts += text[at : named.end()], HIDDEN
            at = end
    return "".join([*parts, text[at:]])


def _end_of_value(text: str, named: re.Match[str]) -> int:
    """Return the end of the value after a name: rather too late than too early."""
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
    """Whether a name and its mark announce a secret; ``token: str`` is code."""
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
    """Return the items of a command line, with an ellipsis after options like ``--password``."""
    plain: list[Any] = []
    is_value = False
    for item in items:
        plain.append(HIDDEN if is_value else item)
        is_option = isinstance(item, str) and item.startswith("--") and "=" not in item
        is_value = is_option and names_secret(item)
    return plain
