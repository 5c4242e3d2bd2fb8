"""Passwords, tokens and keys, as the names before them or their own forms give them away.

By name: values of args, ``NAME=value``, ``"name": "value"`` and ``--name value`` within texts. A
name is that of a secret where its words say so: ``HF_TOKEN`` and ``--db-password`` do,
``max_new_tokens``, ``Token count``, ``pad_token`` and ``key_padding_mask`` do not. A value without
quotes goes on to the next blank, quote or ``&``; one in quotes that are not closed, to the end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

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
