"""`Unrecorded`: a profile without content, as `with profile() as run` hands it out at its start."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NoReturn

from gpuprof_widgets.exceptions import RecordingError
from gpuprof_widgets.profiles import Profile

NOT_ENDED = "the block of this profile has not ended yet: its content is there from its end on"
FIELDS = frozenset(field.name for field in fields(Profile))


class Unrecorded(Profile):
    """A profile of a block that has not ended yet, or of which nothing could be recorded.

    Any use of it raises a `RecordingError` with the reason, ``why``. Whoever has it at hand when
    the content comes (see `become`) has a `Profile` like any other from then on.
    """

    why: str

    def __init__(self, why: str = NOT_ENDED) -> None:
        object.__setattr__(self, "why", why)

    def __getattribute__(self, name: str) -> Any:
        # Python's own protocols go on as ever, and so do names that no profile has.
        if name.startswith("__") or not (hasattr(Profile, name) or name in FIELDS):
            return object.__getattribute__(self, name)
        raise RecordingError(self.why)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise RecordingError(self.why)  # a copy would never get the content

    def __repr__(self) -> str:
        return f"<Profile: {self.why}>"


def become(profile: Profile, result: Profile) -> None:
    """Give an unrecorded one the content of the result, or the reason why that has none."""
    vars(profile).clear()
    vars(profile).update(vars(result))
    object.__setattr__(profile, "__class__", type(result))
