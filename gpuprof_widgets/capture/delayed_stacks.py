"""The stack at the moment of a signal, from the stack at which Python handled it.

CPython handles a signal where a function begins or goes on, at jumps back and after calls of C.
What runs in between, such as operators and the last instructions of a function, has ended when the
stack is read. So the thread was at one of the instructions since the last place where signals are
handled. They may be in a function that has returned since: other stacks show what is called there.
"""

from __future__ import annotations

import dis
import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from gpuprof_widgets.capture.stack_samplers import Stacks

Stack = tuple[int, ...]
"""As in `Stacks`: two numbers for each frame, the innermost first."""

GOLDEN_RATIO = 0.618033988749895
"""Its multiples, less their whole parts, are as even as can be, however many they are."""
_HANDLING = (
    *("CALL", "JUMP_BACKWARD", "POP_JUMP_BACKWARD", "RESUME"),
    *("RETURN_", "RAISE", "RERAISE", "JUMP_FORWARD"),
)
"""Instructions at which CPython handles signals, or behind which the next one does not run."""
_OPERATORS = ("BINARY_", "COMPARE_OP", "UNARY_", "STORE_SUBSCR", "DELETE_SUBSCR", "CALL")
_OURS = str(Path(__file__).parent) + os.sep
"""Files whose functions hear of signals and collections: nothing in a user's code calls them."""
_CACHE, _PRECALL = dis.opmap["CACHE"], dis.opmap.get("PRECALL", -1)
_MOST_RETURNED, _MOST_STEPS = 8, 100
"""How many functions may have returned, each to the next one, and their steps to look at."""


class Step(NamedTuple):
    """A place where the thread may have been, and whether it may run an op."""

    node: int
    is_operator: bool


class DelayedStacks:
    """Finds the stacks at the moments of signals.

    All stacks are one tree: a node is the instruction of a frame, its parent that of its caller.
    """

    def __init__(self, stacks: Stacks) -> None:
        self._codes = stacks.codes
        self._stack_of = {number: stack for stack, number in stacks.number.items()}
        self._instructions: dict[int, _Instructions] = {}
        self._nodes: dict[tuple[int, int, int], int] = {}
        self._parts: list[tuple[int, int, int]] = []
        self._called: defaultdict[int, dict[int, None]] = defaultdict(dict)
        self._in_ops: defaultdict[str, set[int]] = defaultdict(set)
        self._long = set[int]()
        self._steps: dict[int, list[Step]] = {}
        self._turns: defaultdict[int, int] = defaultdict(int)
        self._node_of = {number: self._node_of_stack(one) for number, one in self._stack_of.items()}

    def saw(self, number: int, op: str) -> None:
        """Take note of a stack that was read as its thread let another one run.

        ``op``: the op that was open then, outside of others ("": none). Where no signals are
        handled, only long code of C lets other threads run: an op, or one of NumPy.
        """
        node = self._node_of[number]
        _, code, at = self._parts[node]
        instructions = self._of_code(code)
        if op:
            self._in_ops[op].add(node)
        if op or not instructions.handles[instructions.place(at)]:
            self._long.add(node)

    def as_read(self, number: int) -> Stack:
        """Return a stack as it was read."""
        return self._stack_of[number]

    def when_planned(self, number: int, op: str, ops_begun: int) -> Stack:
        """Return the stack at the moment of a signal.

        ``op``: the op that was open then, outside of others ("": none); ``ops_begun``: how many
        others began from then until the stack of that number was read.
        """
        if not self._stack_of[number]:
            return ()
        steps = self._steps_to(number)
        operators = [step.node for step in steps if step.is_operator]
        if op and operators:
            last = len(operators) - 1
            place = last - ops_begun if ops_begun <= last else last
            seen = [at for at, node in enumerate(operators) if node in self._in_ops[op]]
            return self._stack(operators[min(seen, key=lambda at: abs(at - place), default=place)])
        self._turns[number] += 1
        nodes = [node for node in operators if node in self._long] or [one.node for one in steps]
        return self._stack(nodes[int(self._turns[number] * GOLDEN_RATIO % 1 * len(nodes))])

    def _stack(self, node: int) -> Stack:
        numbers: list[int] = []
        while node >= 0:
            node, code, at = self._parts[node]
            numbers += (code, at)
        return tuple(numbers)

    def _node_of_stack(self, stack: Stack) -> int:
        node = -1
        for code, at in zip(stack[-2::-2], stack[::-2], strict=True):
            if node >= 0 and not self._codes[code].co_filename.startswith(_OURS):
                self._called[node][code] = None
            node = self._node(node, code, _instruction(self._codes[code].co_code, at))
        return node

    def _node(self, parent: int, code: int, at: int) -> int:
        parts = parent, code, at
        node = self._nodes.setdefault(parts, len(self._parts))
        if node == len(self._parts):
            self._parts.append(parts)
        return node

    def _of_code(self, code: int) -> _Instructions:
        if code not in self._instructions:
            self._instructions[code] = _Instructions(self._codes[code])
        return self._instructions[code]

    def _steps_to(self, number: int) -> list[Step]:
        """Return where the thread may have been when that stack was on the way, in order."""
        if number not in self._steps:
            node = self._node_of[number]
            parent, code, at = self._parts[node]
            instructions = self._of_code(code)
            place = instructions.place(at)
            if instructions.begins(place) and parent >= 0:  # the function was about to be called
                node = parent
                parent, code, at = self._parts[node]
                instructions = self._of_code(code)
                found = self._since_handled(parent, code, instructions.place(at), 0)
            elif self._called.get(node):
                found = iter([*self._returns(node, 0), Step(node, True)])
            else:
                found = self._since_handled(parent, code, place, 0)
            self._steps[number] = list(found) or [Step(node, False)]
        return self._steps[number]

    def _since_handled(self, parent: int, code: int, last: int, depth: int) -> Iterator[Step]:
        """Yield a function's instructions up to one, from the last that handles signals on.

        Where that one called a function, its last instructions come first.
        """
        instructions = self._of_code(code)
        first = last
        while first > 0:
            before = self._nodes.get((parent, code, instructions.offsets[first - 1]))
            if before is not None and self._called.get(before):
                yield from self._returns(before, depth)
                break
            if instructions.handles[first - 1]:
                break
            first -= 1
        for place in range(first, last + 1):
            if instructions.has_line[place]:
                node = self._node(parent, code, instructions.offsets[place])
                yield Step(node, instructions.is_operator[place])

    def _returns(self, node: int, depth: int) -> Iterator[Step]:
        """Yield the last instructions of the functions that were called there, some of many."""
        ends = (
            self._since_handled(node, code, last, depth + 1)
            for code in list(self._called[node])
            for last in self._of_code(code).returns
        )
        if depth < _MOST_RETURNED:
            yield from islice(chain.from_iterable(ends), _MOST_STEPS)


class _Instructions:
    """The instructions of a function."""

    def __init__(self, code: CodeType) -> None:
        found = list(dis.get_instructions(code))
        names = [one.opname for one in found]
        self.offsets = [one.offset for one in found]
        self.has_line = [
            one.positions is not None and one.positions.lineno is not None for one in found
        ]
        self.is_operator = [name.startswith(_OPERATORS) for name in names]
        self.handles = [name.startswith(_HANDLING) for name in names]
        self.returns = [
            place
            for place, name in enumerate(names)
            if name.startswith(("RETURN_VALUE", "RETURN_CONST", "YIELD_VALUE"))
        ]
        self._names = names

    def place(self, at: int) -> int:
        """Return which one is at an offset."""
        return bisect_left(self.offsets, at)

    def begins(self, place: int) -> bool:
        """Whether the function has just begun, or gone on, there."""
        return self._names[place] == "RESUME"


def _instruction(code: bytes, at: int) -> int:
    """Return where the instruction begins that a frame stands at, or in whose cache it does."""
    while at > 0 and code[at] == _CACHE:
        at -= 2
    if code[at] == _PRECALL:  # it may do the whole call
        at = next(place for place in range(at + 2, len(code), 2) if code[place] != _CACHE)
    return at
