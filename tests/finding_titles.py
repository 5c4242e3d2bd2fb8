"""What a title of a finding must be like."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from gpuprof_widgets.analyses.findings import Finding

MOST_WORDS = 10
NAME = re.compile(r"`[^`]*`")
"""A name or a statement, which counts as one word."""


def title_problems(findings: Iterable[Finding]) -> list[str]:
    """What is wrong with the titles of what one rule found; findings on one place have two."""
    findings = list(findings)
    places = Counter((each.title, each.start_ns, each.end_ns, each.rows) for each in findings)
    twice = [f"{title!r} stands twice" for (title, *_), count in places.items() if count > 1]
    return [*twice, *filter(None, map(_problem, findings))]


def _problem(finding: Finding) -> str:
    title = finding.title
    words = NAME.sub("name", title).split()
    if not words:
        return f"no title: {finding.text}"
    if len(words) > MOST_WORDS:
        return f"{len(words)} words: {title}"
    if "`" in NAME.sub("", title) or "``" in title:
        return f"a name that does not end, or is empty: {title}"
    if not (title[0].isupper() or title.startswith("`")):
        return f"no beginning of a sentence: {title}"
    return f"an end that is none: {title}" if title[-1] in ".:,; " else ""


def with_checked_titles(rule: Callable[..., Any]) -> Callable[..., Any]:
    """The rule, which fails where it finds something without a proper title."""

    @wraps(rule)
    def checked(*args: Any, **limits: float) -> Any:
        found = rule(*args, **limits)
        problems = title_problems(getattr(each, "finding", each) for each in found)
        assert not problems, "\n".join(problems)
        return found

    return checked
