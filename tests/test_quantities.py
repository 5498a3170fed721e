"""Quantities as people write them."""

import contextlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopscale.core.errors import InputError
from loopscale.core.quantities import (
    bits_of,
    bytes_of,
    count_of,
    format_bytes,
    format_count,
    format_duration,
    format_size,
    fraction_of,
    parse_integers,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [("5e21", 5e21), ("0.3B", 3e8), ("6T", 6e12), ("500b", 5e11), ("1_000", 1e3), ("1,000", 1e3), (".5M", 5e5)],
)
def test_counts_are_read_as_written(text, value):
    assert count_of(text) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (0.0005, "43 s"),
        (0.02, "29 min"),
        (1.5, "36.0 h"),
        (12, "12.0 days"),
        (748.6, "749 days"),
        (13911.3, "13,911 days"),
    ],
)
def test_durations_have_no_more_digits_than_they_deserve(days, text):
    assert format_duration(days * 86400) == text


@pytest.mark.parametrize(
    ("text", "value"), [("3GB", 3e9), ("3 gb", 3e9), ("3GiB", 3 * 2**30), ("512MB", 512e6), ("1e9", 1e9), ("2TB", 2e12)]
)
def test_memory_is_decimal_unless_it_says_binary(text, value):
    assert bytes_of(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("4", 4), ("int4", 4), ("bf16", 16), ("fp8", 8), ("nf4", 4), ("4.5bit", 4.5)]
)
def test_bits_are_read_by_number_or_name(text, value):
    assert bits_of(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("4", (4,)), ("1,2,4", (1, 2, 4)), ("1..4", (1, 2, 3, 4)), ("1-3,8", (1, 2, 3, 8)), ("2,2", (2,))],
)
def test_lists_of_whole_numbers_take_ranges(text, value):
    assert parse_integers(text) == value


@pytest.mark.parametrize("parse", [count_of, bytes_of, bits_of, parse_integers])
@pytest.mark.parametrize(
    "text", ["", "-3", "0", "nan", "inf", "1e999", "1e91", "three", "3 apples", "--", "1..", "..", "1e", "٣x"]
)
def test_nonsense_is_refused_in_one_sentence(parse, text):
    with pytest.raises(InputError) as error:
        parse(text, "value")
    assert str(error.value).startswith("value: ")
    assert "\n" not in str(error.value)


@given(st.text(max_size=20))
def test_no_text_makes_a_parser_fail_otherwise(text):
    for parse in (count_of, bytes_of, bits_of, parse_integers):
        with contextlib.suppress(InputError):
            parse(text)


@given(st.floats(1e3, 1e14))
def test_a_written_count_reads_back_to_its_digits(value):
    assert count_of(format_count(value, 4)) == pytest.approx(value, rel=1e-3)


def test_numbers_are_written_as_people_read_them():
    assert format_count(588.6e9) == "589B"
    assert format_count(3.26e12) == "3.26T"
    assert format_count(5e21) == "5e21"
    assert format_count(173e6, 2) == "173M"
    assert format_count(512, 2) == "512"
    assert format_size(755056640) == "0.755B"
    assert format_size(55e6) == "55M"
    assert format_bytes(2708848640) == "2.71 GB"
    assert format_bytes(12) == "12 B"


@pytest.mark.parametrize(("text", "value"), [("40%", 0.4), ("0.4", 0.4), ("1", 1.0), ("100 %", 1.0)])
def test_fractions_are_read_as_parts_or_percentages(text, value):
    assert fraction_of(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["0", "40", "101%", "-3%", "nan", "half"])
def test_a_fraction_outside_zero_to_one_is_refused(text):
    with pytest.raises(InputError, match=r"write it like 0\.4 or 40%"):
        fraction_of(text)


def test_python_takes_numbers_and_text_alike():
    assert count_of("6T") == count_of(6e12) == count_of(6_000_000_000_000) == 6e12
    assert bytes_of("3GB") == bytes_of(np.float64(3e9)) == 3e9
    assert bits_of("int4") == bits_of(4) == 4
    assert fraction_of("40%") == fraction_of(0.4) == 0.4


@pytest.mark.parametrize("value", [10**400, math.nan, math.inf, -1, 0, True, None, [1], {}, "no", object()])
@pytest.mark.parametrize("read", [count_of, bytes_of, bits_of, fraction_of])
def test_anything_but_a_positive_number_is_refused_in_one_sentence(read, value):
    with pytest.raises(InputError, match=r"^value: "):
        read(value, "value")
