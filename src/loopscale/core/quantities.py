"""Quantities as people write them: ``0.3B``, ``6T``, ``5e21``, ``3GB``, ``int4``."""

from __future__ import annotations

import math
import re
from typing import Any, SupportsFloat

from loopscale.core.errors import InputError, shown

_NUMBER = r"([0-9][0-9_,]*\.?[0-9]*(?:e[+-]?[0-9]+)?|\.[0-9]+(?:e[+-]?[0-9]+)?)"
_COUNT = re.compile(rf"{_NUMBER}\s*([kmbgtp]?)", re.IGNORECASE)
_BYTES = re.compile(rf"{_NUMBER}\s*([kmgtp]?)(i?)b?", re.IGNORECASE)
_BITS = re.compile(r"(?:int|uint|fp|float|bf|nf|mxfp|nvfp|q)?([0-9]+(?:\.[0-9]+)?)(?:\s*-?bits?)?", re.IGNORECASE)
_FRACTION = re.compile(rf"{_NUMBER}\s*(%?)", re.IGNORECASE)
_TIME = re.compile(rf"{_NUMBER}\s*([a-z]*)", re.IGNORECASE)

_SCALE = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12, "p": 1e15}
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_DAYS = {"h": 1 / 24, "hour": 1 / 24, "hours": 1 / 24, "d": 1.0, "day": 1.0, "days": 1.0, "w": 7.0, "week": 7.0,
         "weeks": 7.0, "month": 30.0, "months": 30.0}  # fmt: skip
LARGEST = 1e90
"""Of a quantity that people give: the product of three is still a number."""
WEIGHT_FORMATS = {
    "q2_k": 2.625, "q3_k_m": 3.91, "q4_0": 4.5, "q4_1": 5.0, "q4_k_s": 4.58, "q4_k_m": 4.85, "q5_0": 5.5, "q5_1": 6.0,
    "q5_k_m": 5.69, "q6_k": 6.5625, "q8_0": 8.5, "iq4_xs": 4.25, "iq4_nl": 4.5, "awq_g128": 4.25, "gptq_g128": 4.25,
    "awq_g64": 4.5, "gptq_g64": 4.5,
}  # fmt: skip
"""Bits per weight of formats that store scales beside the weights, by name."""


def number_of(value: object, what: str = "number") -> float:
    """Return a finite number as a float; anything else, NaN and numbers too large for a float are refused."""
    if isinstance(value, bool) or not isinstance(value, SupportsFloat) or isinstance(value, str):
        raise InputError(f"{shown(value)} is not a number", field=what)
    try:
        number = float(value)
    except (OverflowError, TypeError, ValueError):
        raise InputError(f"{shown(value)} is not a number that can be computed with", field=what) from None
    if not math.isfinite(number):
        raise InputError(f"{shown(value)} is not finite", field=what)
    return number


def _text_of(value: object, what: str) -> str:
    """Return a quantity as text: a number by its shortest one, so that it is held to the same limits."""
    return value if isinstance(value, str) else repr(number_of(value, what))


def count_of(value: object, what: str = "number") -> float:
    """Read a positive count: ``0.3B`` parameters, ``6T`` tokens, ``5e21`` FLOPs, or a number."""
    text = _text_of(value, what)
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{shown(text)} is not a positive number", field=what, remedy="write it like 5e21, 0.3B or 6T")
    return _positive(_number(match[1]) * _SCALE[match[2].lower()], text, what)


def whole_count_of(value: object, what: str = "tokens") -> float:
    """Read a count of things that come whole, like tokens or parameters: one or more."""
    number = count_of(value, what)
    if number < 1:
        raise InputError(f"{shown(value)} is less than one", field=what, remedy="write it like 500B")
    return number


def bytes_of(value: object, what: str = "memory") -> float:
    """Read an amount of memory: ``3GB`` is 3e9 bytes, ``3GiB`` is 3 * 2**30; a number is bytes."""
    text = _text_of(value, what)
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise InputError(
            f"{shown(text)} is not an amount of memory", field=what, remedy="write it like 3GB, 512MB or 8GiB"
        )
    base = 1024.0 if match[3] else 1000.0
    return _positive(_number(match[1]) * base ** _POWER[match[2].lower()], text, what)


def fraction_of(value: object, what: str = "fraction") -> float:
    """Read a part of a whole, above 0 and at most 1: ``0.4`` or ``40%``."""
    text = _text_of(value, what)
    match = _FRACTION.fullmatch(text.strip())
    share = _number(match[1]) / (100 if match[2] else 1) if match else math.nan
    if not 0 < share <= 1:
        raise InputError(f"{shown(text)} is not above 0 and at most 1", field=what, remedy="write it like 0.4 or 40%")
    return share


def bits_of(value: object, what: str = "bits") -> float:
    """Read a bit width: ``4``, ``int4``, ``bf16``, ``fp8``, ``4.5bit``, or a format like ``q4_k_m`` (4.85)."""
    text = _text_of(value, what)
    named = WEIGHT_FORMATS.get(text.strip().lower().replace("-", "_"))
    if named is not None:
        return named
    match = _BITS.fullmatch(text.strip())
    bits = float(match[1]) if match else math.nan
    if not 1 <= bits <= 64:
        raise InputError(
            f"{shown(text)} is not a width between 1 and 64 bits",
            field=what,
            remedy="write it like 4, int4, fp8, bf16, q4_k_m or awq-g128",
        )
    return bits


def context_of(value: object, what: str = "context") -> int:
    """Read a context length: ``8192``, ``8k`` (8,192 tokens) or ``1M`` (1,048,576), as model cards mean them."""
    text = _text_of(value, what)
    match = _COUNT.fullmatch(text.strip())
    power = {"k": 1, "m": 2}.get(match[2].lower()) if match else None
    if match is None or power is None:
        count = count_of(text, what)
    else:
        count = _positive(_number(match[1]) * 1024**power, text, what)
    return whole_of(count, text, what)


def whole_of(number: float, text: object, what: str) -> int:
    """Return a number that was written as ``text`` as an int; parts of one and more than a billion are refused."""
    if number != round(number) or number > 1e9:
        raise InputError(
            f"{shown(text)} is not a whole number up to a billion", field=what, remedy="write it like 8192 or 32k"
        )
    return int(number)


def days_of(value: object, what: str = "days") -> float:
    """Read a time in days, or with its unit: ``21``, ``36h``, ``3weeks``."""
    text = _text_of(value, what)
    match = _TIME.fullmatch(text.strip())
    days = _number(match[1]) * _DAYS.get(match[2].lower() or "d", 0.0) if match else 0.0
    if not 0 < days < 1e6:
        raise InputError(f"{shown(text)} is not a time", field=what, remedy="write it like 21, 36h or 3weeks")
    return days


def parse_integers(text: str, what: str = "list") -> tuple[int, ...]:
    """Read whole numbers of one or more, as a list or ranges: ``1,2,4``, ``1..10``, ``1-4,8``."""
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,6})\s*(?:(?:\.\.|-|:)\s*([0-9]{1,6})\s*)?", part)
        first = int(match[1]) if match else 0
        last = int(match[2]) if match and match[2] else first
        if first < 1 or last < first:
            raise InputError(
                f"{shown(text)} is not a list of whole numbers from 1 up",
                field=what,
                remedy="write it like 4, 1,2,4 or 1..10",
            )
        if last - first > 10_000:
            raise InputError(f"{shown(text)} spans more than 10,000 numbers", field=what, remedy="narrow the range")
        numbers.extend(range(first, last + 1))
    return tuple(sorted(set(numbers)))


def format_count(value: float, digits: int = 3) -> str:
    """Write a count as ``0.755B``, ``588B`` or ``6T``; from 1e15 up as ``5e21``."""
    if not math.isfinite(value):
        return "∞" if value > 0 else str(value)
    if abs(value) >= 1e15:
        return format_power(value, digits)
    for scale, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= scale:
            return f"{_significant(value / scale, digits)}{letter}"
    return _significant(value, digits)


def format_power(value: float, digits: int = 3) -> str:
    """Write a large number as people write compute: ``5e21``, ``2.83e9``."""
    mantissa, power, exponent = f"{value:.{digits}g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if power else mantissa


def decimals(uncertainty: float) -> int:
    """Return how many decimals a value with this uncertainty deserves: up to its first digit, or its second below 3.5.

    An uncertainty of 0.012 gives 3, one of 0.041 gives 2.
    """
    if not (math.isfinite(uncertainty) and uncertainty > 0):
        return 4
    leading = math.floor(math.log10(uncertainty))
    digits = 2 if uncertainty / 10**leading < 3.55 else 1
    return min(max(digits - 1 - leading, 0), 8)


def format_value(value: float, uncertainty: float) -> str:
    """Write a value with as many decimals as its uncertainty deserves; large and tiny ones as powers of ten."""
    if value and not 1e-4 <= abs(value) < 1e6:
        return format_power(value)
    return f"{value:.{decimals(uncertainty)}f}"


def format_span(low: float | None, high: float | None, digits: int = 3) -> str:
    """Write the range of a count: ``80M–900M``, or one number where both ends are the same."""
    ends = ["?" if end is None else format_count(end, digits) for end in (low, high)]
    return ends[0] if ends[0] == ends[1] else "–".join(ends)


def counted(number: int, noun: str) -> str:
    """Write how many there are: ``1 run``, ``2,400 runs``, ``2 processes``."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def format_size(value: float) -> str:
    """Write a parameter count in billions, as the paper's tables do, or in millions below 0.1 B."""
    return f"{value / 1e9:.3f}B" if value >= 1e8 else format_count(value)


def format_bytes(value: float, digits: int = 3) -> str:
    """Write decimal bytes: ``2.71 GB``."""
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(value) >= scale:
            return f"{_significant(value / scale, digits)} {unit}"
    return f"{value:.0f} B"


def format_duration(seconds: float | None) -> str:
    """Write a duration as ``42 s``, ``8 min``, ``3.5 h``, ``12.0 days`` or ``1,390 days``; an unknown one as a dash."""
    if seconds is None:
        return "–"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    days = seconds / 86400
    return f"{days:.1f} days" if days < 100 else f"{days:,.0f} days"


def format_days(days: float) -> str:
    """Write the time of a training run: ``14 days``, and shorter times in hours, minutes or seconds."""
    return f"{days:.3g} days" if days >= 2 else format_duration(days * 86400) if days * 86400 >= 1 else "under 1 s"


def plain(value: float) -> float:
    """Return a whole number as an int, so that JSON shows 8 and not 8.0."""
    number = float(value)
    return int(number) if number.is_integer() else number


def _significant(value: float, digits: int) -> str:
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e" in text and 1 <= abs(value) < 1e4 else text


def _number(text: str) -> float:
    try:
        return float(re.sub(r"[_,]", "", text))
    except ValueError:
        return math.nan


def _positive(value: float, text: str, what: str) -> float:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{shown(text)} must be finite and above zero", field=what)
    if value > LARGEST:
        raise InputError(f"{shown(text)} is too large to compute with", field=what, remedy=f"give at most {LARGEST:g}")
    return value


def number_or_nan(value: Any) -> float:
    """Return a cell of a table as a number; NaN where it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")
