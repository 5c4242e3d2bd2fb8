"""The stack at the moment of a signal, from the stack at which Python handled it.

CPython handles a signal where a function begins or goes on, at jumps back and after calls of C.
What runs in between, such as operators and the last instructions of a function, has ended when the
stack is read. So the thread was at one of the instructions since the last place where signals are
handled. They may be in a function that has returned since: other stacks show what is called there.
"""

from __future__ import annotations

import dis
import os
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from gpuprof_widgets.capture.stack_samplers import Stacks

Stack = tuple[int, ...]
"""As in `Stacks`: two numbers for each frame, the innermost first."""

GOLDEN_RATIO = 0.618033988749895
"""Its multiples, less their whole parts, are as even as can be, however many they are."""
_HANDLING = re.compile("CALL(?!_INTRINSIC)|JUMP_BACKWARD|RESUME")
"""Instructions at which CPython handles signals."""
_LEAVING = re.compile("RETURN_(VALUE|CONST)|RAISE|RERAISE|JUMP_(FORWARD|BACKWARD)")
"""Instructions behind which the next one does not run."""
_OPERATORS = re.compile("BINARY_|COMPARE_OP|UNARY_|STORE_S|DELETE_SUBSCR|CALL")
"""Instructions that may run an op, each one of its own as a rule."""
_END = re.compile("RETURN_(VALUE|CONST)|YIELD_VALUE")
"""Instructions with which a function returns, or a generator yields."""
_OURS = str(Path(__file__).parent) + os.sep
"""Files whose functions hear of signals and collections: nothing in a user's code calls them."""
_CACHE, _PRECALL = dis.opmap["CACHE"], dis.opmap.get("PRECALL", -1)
_FEW = 0.1
"""A place with fewer notes on an op than this share of the most noted one's may be a mistake."""
_MOST_RETURNED, _MOST_STEPS = 8, 100
"""How many functions may have returned, each to the next one, and their steps to look at."""


class Step(NamedTuple):
    """A place where the thread may have been, and whether it may run an op."""

    node: int
    is_operator: bool


class OpsAround(NamedTuple):
    """The ops at a moment, and from then until a stack was read.

    ``open``: the names of those that were open at the moment and no longer when the stack was read,
    the innermost first; ``begun``: how many others began meanwhile beside the outermost of these;
    ``is_near``: whether one begins or ends so close to the moment that its call may be under way.
    """

    open: Sequence[str] = ()
    begun: int = 0
    is_near: bool = False


class DelayedStacks:
    """Finds the stacks at the moments of signals.

    All stacks are one tree: a node is the instruction of a frame, its parent that of its caller.
    """

    def __init__(self, stacks: Stacks) -> None:
        self._codes = stacks.codes
        self.stack_of = {number: stack for stack, number in stacks.number.items()}
        self._instructions: dict[int, _Instructions] = {}
        self._nodes: dict[tuple[int, int, int], int] = {}
        self._parts: list[tuple[int, int, int]] = []
        self._called: defaultdict[int, dict[int, None]] = defaultdict(dict)
        self._in_ops: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._with_op, self._long = set[int](), set[int]()
        self._steps: dict[int, list[Step]] = {}
        self._turns: defaultdict[int, int] = defaultdict(int)
        self._node_of = {number: self._node_of_stack(one) for number, one in self.stack_of.items()}

    def saw(self, number: int, ops: Sequence[str]) -> None:
        """Take note of a stack that was read as its thread let another one run, while ops ran.

        Where no signals are handled, only long code of C lets others run: an op, or one of NumPy.
        """
        node = self._node_of[number]
        _, code, at = self._parts[node]
        instructions = self._of_code(code)
        for op in ops:
            self._in_ops[op][node] += 1
        if ops:
            self._with_op.add(node)
        elif not instructions.handles[instructions.place(at)]:
            self._long.add(node)

    def when_planned(self, number: int, ops: OpsAround) -> Stack:
        """Return the stack at the moment of a signal; ``number``: that of the stack as read."""
        if not self.stack_of[number]:
            return ()
        steps = self._steps_to(number)
        nodes = [step.node for step in steps]
        if ops.open:
            operators = [place for place, step in enumerate(steps) if step.is_operator]
            last = len(operators) - 1
            begun = ops.begun if ops.begun <= last else 0  # a call may run many
            place = operators[last - begun] if operators else len(steps) - 1
            seen = self._seen(nodes, ops.open)
            return self._stack(nodes[min(seen, key=lambda at: abs(at - place), default=place)])
        long = [node for node in nodes if node in self._long]
        if not long and ops.is_near:
            long = [node for node in nodes if node in self._with_op]
        self._turns[number] += 1
        nodes = long or nodes
        return self._stack(nodes[int(self._turns[number] * GOLDEN_RATIO % 1 * len(nodes))])

    def _seen(self, nodes: Sequence[int], ops: Sequence[str]) -> list[int]:
        """Return the places of those nodes that ran the first op that any of them ran.

        What was seen once where others were seen often may be of the op beside it.
        """
        for op in ops:
            counts = [self._in_ops[op][node] for node in nodes]
            if enough := max(counts) * _FEW:
                return [place for place, count in enumerate(counts) if count >= enough]
        return []

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
        own, calling, todo = set[int](), dict[int, None](), [last]
        while todo:
            place = todo.pop()
            own.add(place)
            for before in instructions.before[place]:
                node = self._nodes.get((parent, code, instructions.offsets[before]), -1)
                if self._called.get(node):
                    calling[node] = None
                elif before not in own and not instructions.handles[before]:
                    todo.append(before)
        for node in calling:
            yield from self._returns(node, depth)
        for place in sorted(own):
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
        self.is_operator = [bool(_OPERATORS.match(name)) for name in names]
        self.handles = [bool(_HANDLING.match(name)) for name in names]
        self.returns = [place for place, name in enumerate(names) if _END.match(name)]
        self.before = self._before(found)
        """The places from which each one is reached, except by jumps back and out of loops."""
        self._names = names

    def _before(self, found: Sequence[dis.Instruction]) -> list[list[int]]:
        before: list[list[int]] = [[] for _ in found]
        for place, one in enumerate(found):
            if place + 1 < len(found) and not _LEAVING.match(one.opname):
                before[place + 1].append(place)
            if "JUMP" in one.opname and one.argval > one.offset:
                before[self.place(one.argval)].append(place)
        return before

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
