"""Passwords, tokens and keys, as the names before them or their own forms give them away.

By name: values of args, ``NAME=value``, ``"name": "value"`` and ``--name value`` within texts. A
name is that of a secret where its words say so: ``HF_TOKEN`` and ``--db-password`` do,
``max_new_tokens``, ``Token count``, ``pad_token`` and ``key_padding_mask`` do not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

HIDDEN = "…"

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ALWAYS = frozenset(
    re.findall(
        r"[\w-]+",
        "password passwords passwd passphrase secret secrets credential credentials apikey",
    )
)
"""Words that make whatever is called so a secret."""
_AT_THE_END = frozenset(
    re.findall(
        r"[\w-]+",
        "token auth authorization cookie bearer",
    )
)
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
        "service subscription",
    )
)

_VALUE = r"(?P<value>(?P<quote>\\*[\"']).*?(?P=quote)|[^\s\"'\\,;&()\[\]{}<>|]+)"
_PAIR = re.compile(
    rf"(?P<name>(?<![\w.])[A-Za-z_][\w.-]*)(?P<mark>\\*[\"']?\s*(?:=(?!=)|:(?!:))\s*){_VALUE}"
)
_OPTION = re.compile(rf"(?P<name>(?<![\w-])--[A-Za-z][\w-]*)(?P<mark>\s+)(?!-){_VALUE}")
_LITERAL = re.compile(r"(?:none|null|true|false|…)", re.IGNORECASE)
_NUMBER = re.compile(r"-?[\d.]+(?:e[-+]?\d+)?", re.IGNORECASE)
_FORM = re.compile(
    r"\b(?:hf_(?:[A-Za-z0-9]{20,}|(?=[A-Za-z]*\d)[A-Za-z0-9]{12,})|gh[pousr]_[A-Za-z0-9]{16,}"
    r"|github_pat_\w{16,}|glpat-[\w-]{16,}|(?:AKIA|ASIA)[A-Z0-9]{12,}|xox[abeprs]-[\w-]{10,}"
    r"|sk-(?=[\w-]*\d)[\w-]{16,}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?)"
    r"|(?<=\bBearer )[\w.~+/=-]{6,}"
    r"|(?<=\bBasic )(?=[\w+/]*\d)[\w+/]{8,}={0,2}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)",
    re.DOTALL,
)
"""Tokens of Hugging Face, GitHub, GitLab, AWS, Slack, OpenAI and Google, JSON web tokens, HTTP's
authorization, private keys, and a name and password in an address."""
_MAYBE = re.compile(
    r"hf_|gh[pousr]_|github_pat|glpat|AKIA|ASIA|xox|sk-|AIza|eyJ|://|PRIVATE KEY"
    r"|(?i:token|secret|passw|passphrase|credential|auth|cookie|bearer|basic|key)"
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
    of_key = any(word == "key" and before in _KINDS_OF_KEYS for before, word in pairwise(words))
    variable = key.isupper() and words[-1] == "key"  # OPENAI_KEY, but no sort_key
    at_the_end = words[-1] in _AT_THE_END and not _OF_TEXT & set(words)
    return of_key or not _ALWAYS.isdisjoint(words), at_the_end or variable


def without_secrets(text: str) -> str:
    """The text with an ellipsis where a secret stood."""
    if not _MAYBE.search(text):
        return text
    text = _FORM.sub(HIDDEN, text)
    return _OPTION.sub(_hidden, _PAIR.sub(_hidden, text))


def _hidden(found: re.Match[str]) -> str:
    name, mark, value = found["name"], found["mark"], found["value"]
    of_number = _NUMBER.fullmatch(value) is not None
    said = mark.strip() != ":"  # ``token: str`` is code, and ``password: hunter2`` is not
    kept = _LITERAL.fullmatch(value) or not names_secret(name, of_number=of_number or not said)
    return found[0] if kept else f"{name}{mark}{HIDDEN}"


def without_values_of_options(items: Sequence[Any]) -> list[Any]:
    """The items of a command line, with an ellipsis behind an option like ``--password``."""
    before = ["", *items][: len(items)]
    return [
        HIDDEN if _is_option(option) else item for option, item in zip(before, items, strict=True)
    ]


def _is_option(item: Any) -> bool:
    option = isinstance(item, str) and item.startswith("--") and "=" not in item
    return option and names_secret(item)
