"""Units: parsing and formatting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphpipe.errors import InvalidInput
from graphpipe.units import (
    byte_unit,
    format_bytes,
    format_seconds,
    in_unit,
    parse_bytes,
    parse_flops,
    parse_rate,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [("16 GB", 16e9), ("16GiB", 16 * 2**30), ("1.5 kb", 1500), ("7", 7), (7, 7), (" 2e3 B ", 2000), ("1 PiB", 2**50)],
)
def test_bytes(text: str | float, count: float) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    ("text", "rate"),
    [("25 GB/s", 25e9), ("100 Gb/s", 12.5e9), ("1 GiB/s", 2**30), ("8 b/s", 1), ("3 B/s", 3), ("5", 5), (5, 5)],
)
def test_rates_distinguish_bits_from_bytes(text: str | float, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    ("text", "flops"), [("15.7 TFLOP/s", 15.7e12), ("2 gflops", 2e9), ("3 FLOP/s", 3), ("4 TFLOPS", 4e12), ("6", 6)]
)
def test_flops(text: str, flops: float) -> None:
    assert parse_flops(text) == flops


@pytest.mark.parametrize(
    ("text", "seconds"), [("5 us", 5e-6), ("1.5ms", 1.5e-3), ("2 min", 120), ("1 h", 3600), ("3", 3), (0.5, 0.5)]
)
def test_seconds(text: str | float, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_bytes, "16 XB"),
        (parse_bytes, "16 GB/s"),
        (parse_bytes, "much"),
        (parse_bytes, "-1 GB"),
        (parse_bytes, "1.2.3 GB"),
        (parse_rate, "25 GB"),
        (parse_rate, "15 TFLOP/s"),
        (parse_rate, "1 iB/s"),
        (parse_rate, "1 /s"),
        (parse_rate, "nan GB/s"),
        (parse_flops, "15 XFLOP/s"),
        (parse_flops, "25 GB/s"),
        (parse_flops, "1 T"),
        (parse_seconds, "5 GB"),
        (parse_seconds, ""),
    ],
)
def test_an_invalid_unit_is_refused_and_the_field_is_named(parse: type, text: str) -> None:
    with pytest.raises(InvalidInput, match="the field"):
        parse(text, "the field")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.50 KiB"),
        (1000 * 1024, "1,000 KiB"),
        (16 * 2**30, "16.0 GiB"),
        (-3 * 2**20, "-3.00 MiB"),
        (5000 * 2**40, "5,000 TiB"),
    ],
)
def test_bytes_read_with_three_digits(count: float, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.00152, "1.52 ms"), (0.9996, "1,000 ms"), (12.3456, "12.3 s"), (4321, "4,321 s"), (3e-9, "3.00 ns")],
)
def test_seconds_read_with_three_digits(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@given(st.floats(1e-8, 1e5))
def test_printed_seconds_parse_back_to_half_a_percent(seconds: float) -> None:
    assert parse_seconds(format_seconds(seconds).replace(",", "")) == pytest.approx(seconds, rel=5.01e-3)


@given(st.floats(1024, 1e15))
def test_printed_bytes_parse_back_to_half_a_percent(count: float) -> None:
    assert parse_bytes(format_bytes(count).replace(",", "")) == pytest.approx(count, rel=5.01e-3)


def test_the_unit_of_an_axis() -> None:
    assert byte_unit(3e9) == ("GiB", 2**30)
    assert byte_unit(2.0**29) == ("GiB", 2**30)
    assert byte_unit(4e8) == ("MiB", 2**20)


def test_a_table_in_one_unit_shows_small_amounts_briefly() -> None:
    """A table in MiB showed 4 bytes as 0.00000381."""
    assert [in_unit(count, 2.0**20) for count in (0.0, 4.0, 2.0**11, 3.5 * 2**20)] == ["0", "<0.001", "0.00195", "3.50"]
