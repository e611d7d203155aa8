"""A family makes the numbers that a capture would find, whatever they depend on."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from graphpipe.graph import Input
from graphpipe.model.lengths.length_family import LengthFamily, Member
from graphpipe.model.lengths.program_numbers import ProgramNumbers

Number = Callable[[int], int]
"""Of a length."""
NUMBERS: list[Callable[[int, int], Number]] = [
    lambda a, b: lambda length: a * length + b,
    lambda a, b: lambda length: (length - b) // (a + 1),
    lambda a, b: lambda length: -length % (a + 2),
    lambda a, b: lambda length: length + -length % (a + 2),
    lambda a, b: lambda length: max(0, length - b),
    lambda a, b: lambda length: min(length, b),
    lambda a, b: lambda length: length * length,
]


def inputs_of(length: int, other: int = 4) -> tuple[Input, ...]:
    return (
        Input(name="tokens", sample_shape=(length,), dtype="int64"),
        Input(name="mask", sample_shape=(1, length, length + other), dtype="bool"),
    )


def member(length: int, *numbers: Number, rest: str = "") -> Member:
    found = tuple(number(length) for number in numbers)
    return Member(inputs_of(length), (), ProgramNumbers(found, tuple(f"op{at}" for at in range(len(found))), (rest,)))


def join(family: LengthFamily, one: Member) -> bool:
    if fits := family.obstacle(one) is None:
        family.members.append(one)
    return fits


@given(
    kind=st.sampled_from(NUMBERS),
    a=st.integers(0, 9),
    b=st.integers(0, 40),
    lengths=st.lists(st.integers(1, 60), unique=True, min_size=4, max_size=16),
)
def test_what_it_makes_is_what_a_capture_finds(
    kind: Callable[[int, int], Number], a: int, b: int, lengths: list[int]
) -> None:
    number = kind(a, b)
    family = LengthFamily([member(lengths[0], number)])
    for length in lengths[1:]:
        if (made := family.numbers_between(inputs_of(length))) is None:
            join(family, member(length, number))
        else:
            assert made == (number(length),)


def test_two_captures_are_not_enough() -> None:
    family = LengthFamily([member(8, lambda length: length)])
    assert join(family, member(16, lambda length: length))
    assert family.numbers_between(inputs_of(12)) is None
    assert join(family, member(9, lambda length: length))
    assert family.numbers_between(inputs_of(12)) == (12,)
    assert family.numbers_between(inputs_of(17)) is None  # longer than all
    assert family.numbers_between(inputs_of(12, 5)) is None  # the mask has grown by itself


def test_a_length_with_another_remainder_widens_a_family() -> None:
    family = LengthFamily([member(8, lambda length: length)])
    assert join(family, member(16, lambda length: length))
    assert join(family, member(32, lambda length: length))
    assert family.numbers_between(inputs_of(24)) == (24,)
    assert family.numbers_between(inputs_of(20)) is None  # no multiple of eight was captured otherwise
    assert join(family, member(12, lambda length: length))
    assert family.numbers_between(inputs_of(20)) == (20,)


def test_what_keeps_a_capture_out_is_named() -> None:
    family = LengthFamily([member(8, lambda length: length, lambda length: -length % 8)])
    assert join(family, member(16, lambda length: length, lambda length: -length % 8))
    assert family.obstacle(member(9, lambda length: length, lambda length: -length % 8)) == "op1"
    assert family.obstacle(member(24, lambda length: length, lambda length: 0, rest="more")) is not None


def test_a_longer_or_shorter_length_is_looked_for_only_outside() -> None:
    family = LengthFamily([member(8, lambda length: length)])
    assert family.farther(inputs_of(20)) is None  # one capture is on no line
    assert join(family, member(10, lambda length: length))
    assert family.farther(inputs_of(20)) == inputs_of(40)
    assert family.farther(inputs_of(6)) == inputs_of(2)
    assert family.farther(inputs_of(9)) is None
    family.close(inputs_of(20))
    assert family.farther(inputs_of(20)) is None
    assert family.farther(inputs_of(6)) == inputs_of(2)
