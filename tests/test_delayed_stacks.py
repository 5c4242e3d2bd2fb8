"""The stack at the moment of a signal, from that at which Python handled it and from others."""

from __future__ import annotations

import dis
import sys
from collections import Counter
from functools import cache
from itertools import islice, product
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from gpuprof_widgets.capture import delayed_stacks
from gpuprof_widgets.capture.delayed_stacks import DelayedStacks, OpsAround, Stack
from gpuprof_widgets.capture.stack_samplers import Stacks

CODE = """
def square(x):
    return x @ x

def more(x):
    y = x + 1
    return y

def outer(x):
    for _ in x:
        more(square(x))

def chained(x, w, b):
    y = x @ w
    y = y + b
    done(y)

def done(y):
    pass

def twice(x):
    y = x @ x
    done(y)
    z = y + y
    done(z)

def outermost(x):
    for _ in x:
        through(x)

def through(x):
    return square(x)

def branches(x):
    y = x @ x
    if y is None:
        raise ValueError
    if y is x:
        done(x)
    done(y)

def truth(x):
    if x:
        y = 1
    done(y)

def starred(x, n):
    y = x @ x
    done(*n, y)

def items(x):
    for one in x:
        yield one @ one

def loop(x):
    for one in items(x):
        done(one)
"""


@pytest.fixture
def codes() -> dict[str, CodeType]:
    names: dict[str, Any] = {}
    exec(compile(CODE, "users.py", "exec"), names)
    return {name: one.__code__ for name, one in names.items() if hasattr(one, "__code__")}


class Written:
    """Stacks written by hand: each frame is a function, an instruction and which one of these."""

    def __init__(self, codes: dict[str, CodeType]) -> None:
        self.stacks, self.codes = Stacks(), codes

    def stack(self, *frames: tuple[str, str, int]) -> Stack:
        """Outermost first."""
        numbers: list[int] = []
        for function, opname, nth in reversed(frames):
            code = self.codes[function]
            self.stacks.codes[id(code)] = code
            numbers += (id(code), _places(code, opname)[nth])
        return tuple(numbers)

    def add(self, *frames: tuple[str, str, int]) -> int:
        return self.stacks.number.setdefault(self.stack(*frames), self.stacks.next_number())


@cache
def _places(code: CodeType, opname: str) -> list[int]:
    return [one.offset for one in dis.get_instructions(code) if one.opname == opname]


@pytest.fixture
def written(codes: dict[str, CodeType]) -> Written:
    return Written(codes)


NO_OP = OpsAround()
IN_SQUARE = (("outer", "CALL", 0), ("square", "BINARY_OP", 0))
SQUARE_BEGINS = (("outer", "CALL", 0), ("square", "RESUME", 0))
MORE_BEGINS = (("outer", "CALL", 1), ("more", "RESUME", 0))


def test_a_function_that_has_returned_had_the_op(written: Written) -> None:
    """Its operator ran as the signal came, which was handled where the next function begins."""
    written.add(*SQUARE_BEGINS)
    read = written.add(*MORE_BEGINS)
    found = DelayedStacks(written.stacks).when_planned(read, OpsAround(["aten::matmul"]))
    assert found != written.stack(*IN_SQUARE)  # the call of `more` may be one of C
    in_square = written.add(*IN_SQUARE)
    stacks = DelayedStacks(written.stacks)
    stacks.saw(in_square, ["aten::matmul"])
    assert stacks.when_planned(read, OpsAround(["aten::matmul"])) == written.stack(*IN_SQUARE)


def test_a_function_that_has_only_begun_had_no_time(written: Written) -> None:
    read = written.add(*MORE_BEGINS)
    stacks = DelayedStacks(written.stacks)
    for _ in range(20):
        assert len(stacks.when_planned(read, NO_OP)) == 2
        assert stacks.when_planned(read, NO_OP)[0] == id(written.codes["outer"])


@pytest.mark.parametrize(("begun", "nth"), [(0, 2), (1, 1), (2, 0), (7, 2)])
def test_operators_have_their_ops_in_order(written: Written, begun: int, nth: int) -> None:
    """The call is the last of them; more ops than operators are those of one of C."""
    read = written.add(("chained", "CALL", 0))
    found = DelayedStacks(written.stacks).when_planned(read, OpsAround(["aten::add"], begun))
    expected = [("BINARY_OP", 0), ("BINARY_OP", 1), ("CALL", 0)][nth]
    assert found == written.stack(("chained", *expected))


def test_a_call_handles_the_signals_of_what_is_before_it(written: Written) -> None:
    read = written.add(("twice", "CALL", 1))
    stacks = DelayedStacks(written.stacks)
    found = {stacks.when_planned(read, NO_OP) for _ in range(100)}
    assert written.stack(("twice", "BINARY_OP", 1)) in found
    assert not found & {written.stack(("twice", *one)) for one in (("BINARY_OP", 0), ("CALL", 0))}


@pytest.mark.parametrize("seen", [True, False])
def test_a_branch_that_was_not_taken_handled_no_signals(written: Written, seen: bool) -> None:
    in_operator = written.add(("branches", "BINARY_OP", 0))
    read = written.add(("branches", "CALL", 1))
    stacks = DelayedStacks(written.stacks)
    if seen:
        stacks.saw(in_operator, ["aten::matmul"])
    found = stacks.when_planned(read, OpsAround(["aten::matmul"], 1))
    assert found == written.stack(("branches", "BINARY_OP", 0))


def test_a_branch_that_leaves_its_function_leads_nowhere(written: Written) -> None:
    read = written.add(("branches", "CALL", 1))
    stacks = DelayedStacks(written.stacks)
    found = {stacks.when_planned(read, NO_OP) for _ in range(500)}
    assert written.stack(("branches", "BINARY_OP", 0)) in found
    assert written.stack(("branches", "RAISE_VARARGS", 0)) not in found


def test_what_was_seen_in_an_op_need_be_no_operator(written: Written) -> None:
    """`if x:` waits for the GPU."""
    code = written.codes["truth"]
    names = [one.opname for one in dis.get_instructions(code)]
    test = next(name for name in names if name == "TO_BOOL" or "JUMP" in name)
    in_test, read = written.add(("truth", test, 0)), written.add(("truth", "CALL", 0))
    stacks = DelayedStacks(written.stacks)
    stacks.saw(in_test, ["aten::is_nonzero"])
    found = stacks.when_planned(read, OpsAround(["aten::is_nonzero"]))
    assert found == written.stack(("truth", test, 0))


def test_a_call_of_many_arguments_handles_no_signals_before_it(written: Written) -> None:
    """It first makes a tuple, by an instruction that has `CALL` in its name as of 3.12."""
    in_operator = written.add(("starred", "BINARY_OP", 0))
    read = written.add(("starred", "CALL_FUNCTION_EX", 0))
    stacks = DelayedStacks(written.stacks)
    stacks.saw(in_operator, ["aten::matmul"])
    found = stacks.when_planned(read, OpsAround(["aten::matmul"]))
    assert found == written.stack(("starred", "BINARY_OP", 0))


def test_ops_in_an_op_have_their_own_places(written: Written) -> None:
    """`autograd.Function.apply` is one op, and so are those that its Python runs."""
    first = written.add(("chained", "BINARY_OP", 0))
    second = written.add(("chained", "BINARY_OP", 1))
    read = written.add(("chained", "CALL", 0))
    stacks = DelayedStacks(written.stacks)
    for one, op in ((first, "aten::mm"), (second, "aten::add")):
        stacks.saw(one, [op, "MyFunction"])
    for op, nth in (("aten::mm", 0), ("aten::add", 1)):
        found = stacks.when_planned(read, OpsAround([op, "MyFunction"]))
        assert found == written.stack(("chained", "BINARY_OP", nth))


def test_an_op_around_others_is_where_they_are(written: Written) -> None:
    first, read = written.add(("chained", "BINARY_OP", 0)), written.add(("chained", "CALL", 0))
    stacks = DelayedStacks(written.stacks)
    stacks.saw(first, ["aten::mm", "MyFunction"])
    found = stacks.when_planned(read, OpsAround(["MyFunction"]))
    assert found == written.stack(("chained", "BINARY_OP", 0))


def test_what_was_seen_once_by_mistake_is_no_place(written: Written) -> None:
    first = written.add(("chained", "BINARY_OP", 0))
    second = written.add(("chained", "BINARY_OP", 1))
    read = written.add(("chained", "CALL", 0))
    stacks = DelayedStacks(written.stacks)
    for number in [first] * 20 + [second]:
        stacks.saw(number, ["aten::mm"])
    found = stacks.when_planned(read, OpsAround(["aten::mm"]))
    assert found == written.stack(("chained", "BINARY_OP", 0))


def test_an_op_that_was_seen_is_where_it_was_seen(written: Written) -> None:
    read = written.add(("chained", "CALL", 0))
    seen = written.add(("chained", "BINARY_OP", 0))
    stacks = DelayedStacks(written.stacks)
    stacks.saw(seen, ["aten::matmul"])
    assert stacks.when_planned(read, OpsAround(["aten::matmul"])) == written.stack(
        ("chained", "BINARY_OP", 0)
    )
    assert stacks.when_planned(read, OpsAround(["aten::add"], 1)) == written.stack(
        ("chained", "BINARY_OP", 1)
    )


def test_between_ops_each_instruction_has_its_turn(written: Written) -> None:
    written.add(*SQUARE_BEGINS)
    read = written.add(*MORE_BEGINS)
    stacks = DelayedStacks(written.stacks)
    found = Counter(stacks.when_planned(read, NO_OP) for _ in range(1_000))
    assert max(found.values()) - min(found.values()) <= 0.02 * 1_000
    assert {len(one) for one in found} == {2, 4}  # in `square`, and after it in `outer`
    assert all(one[0] == id(written.codes["square"]) for one in found if len(one) == 4)


def test_around_ops_the_instructions_that_run_them_share_the_time(written: Written) -> None:
    """Arguments are read and results made before and after the op."""
    in_square = written.add(*IN_SQUARE)
    read = written.add(*MORE_BEGINS)
    stacks = DelayedStacks(written.stacks)
    stacks.saw(in_square, ["aten::matmul"])
    near = OpsAround(is_near=True)
    assert {stacks.when_planned(read, near) for _ in range(100)} == {written.stack(*IN_SQUARE)}
    assert len({stacks.when_planned(read, NO_OP) for _ in range(100)}) > 3


def test_long_code_of_c_that_runs_no_op_has_the_time(written: Written) -> None:
    """NumPy's matrices; but other threads run after a call, too, however short it is."""
    stacks_of = written.add(*IN_SQUARE), written.add(("chained", "CALL", 0))
    read = written.add(*MORE_BEGINS)
    stacks = DelayedStacks(written.stacks)
    for number in stacks_of:
        stacks.saw(number, [])
    found = {stacks.when_planned(read, NO_OP) for _ in range(100)}
    assert found == {written.stack(*IN_SQUARE)}
    assert len({stacks.when_planned(stacks_of[1], NO_OP) for _ in range(100)}) > 3


def test_functions_may_have_returned_one_to_the_other(written: Written) -> None:
    inner = ("outermost", "CALL", 0), ("through", "CALL", 0), ("square", "BINARY_OP", 0)
    seen = written.add(*inner)
    read = written.add(("outermost", "JUMP_BACKWARD", 0))
    stacks = DelayedStacks(written.stacks)
    stacks.saw(seen, ["aten::matmul"])
    assert stacks.when_planned(read, OpsAround(["aten::matmul"])) == written.stack(*inner)


def test_a_generator_that_has_yielded_had_the_op(written: Written) -> None:
    inner = ("loop", "FOR_ITER", 0), ("items", "BINARY_OP", 0)
    seen = written.add(*inner)
    read = written.add(("loop", "CALL", 1), ("done", "RESUME", 0))
    stacks = DelayedStacks(written.stacks)
    stacks.saw(seen, ["aten::matmul"])
    assert stacks.when_planned(read, OpsAround(["aten::matmul"])) == written.stack(*inner)


def test_functions_that_hear_of_signals_are_called_by_nothing(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may run after any instruction."""
    ours = str(Path(delayed_stacks.__file__).parent / "garbage_collections.py")
    written.codes["heard"] = written.codes["square"].replace(co_filename=ours)
    written.add(("outer", "CALL", 0), ("heard", "BINARY_OP", 0))
    read = written.add(*MORE_BEGINS)
    stacks = DelayedStacks(written.stacks)
    assert {len(stacks.when_planned(read, NO_OP)) for _ in range(50)} == {2}


def test_many_functions_that_call_many_take_no_time(codes: dict[str, CodeType]) -> None:
    """Every one of thirty calls, where it ends, any of thirty that do so: 30 to the power of 8."""
    names = [f"through{number}" for number in range(30)]
    written = Written({name: codes["through"].replace(co_name=name) for name in names})
    at_call = [(name, "CALL", 0) for name in names]
    for depth in range(1, 6):
        for stack in islice(product(at_call, repeat=depth), 5_000):
            for name in names:
                written.add(*stack, (name, "RESUME", 0))
    read = written.add(at_call[0])
    stacks = DelayedStacks(written.stacks)
    found = {stacks.when_planned(read, NO_OP) for _ in range(500)}
    assert 30 < len(found) <= delayed_stacks._MOST_STEPS + 1


def test_no_frame_is_no_frame() -> None:
    stacks = Stacks()
    stacks.number[()] = 0
    assert DelayedStacks(stacks).when_planned(0, NO_OP) == ()


def test_a_frame_in_a_call_stands_at_that_call() -> None:
    """CPython 3.11 and 3.12 may say a place in its cache."""
    read: list[int] = []

    def inner(frame: FrameType) -> None:
        read.append(frame.f_lasti)

    def calling() -> None:
        for _ in range(20):  # soon specialised
            inner(sys._getframe())

    calling()
    code = calling.__code__
    calls = [one.offset for one in dis.get_instructions(code) if one.opname == "CALL"]
    found = {delayed_stacks._instruction(code.co_code, at) for at in read}
    assert found == {calls[-1]}


def test_the_first_part_of_a_call_is_the_call(written: Written) -> None:
    code = written.codes["chained"]
    for one in dis.get_instructions(code):
        after = delayed_stacks._instruction(code.co_code, one.offset)
        assert after == one.offset or (one.opname, code.co_code[after]) == (
            "PRECALL",
            dis.opmap["CALL"],
        )
