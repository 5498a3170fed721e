"""Budgets: every limit and setting of a plan, each described once.

The fields of ``Budget`` carry their label, unit, parser, command-line option, help text and slider. The options of
``loopscale plan``, the texts, the API's request, the page's controls and the plan file are made from them. A new limit
is one field here that says what a candidate ``need``s; limits that depend on several fields stand in ``limits.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec

from loopscale.core.devices import DEVICES
from loopscale.core.errors import InputError, nearest, shown
from loopscale.core.files import fields_as_json
from loopscale.core.quantities import (
    bits_of,
    bytes_of,
    context_of,
    count_of,
    format_bytes,
    format_count,
    format_power,
    whole_count_of,
    whole_of,
)
from loopscale.core.text import capital

if TYPE_CHECKING:
    from loopscale.core.arrays import FloatArray
    from loopscale.planning.grid import Grid

P = ParamSpec("P")

LEAST_MEMORY = 1e6
"""Bytes below which an amount of memory is taken for a missing unit."""


class Group(Enum):
    """Where a field stands in the help and on the page."""

    COMPUTE = "Compute"
    DATA = "Data"
    MEMORY = "Memory and serving"


@dataclass(frozen=True)
class Amount:
    """How the value of a field is read and written."""

    name: str
    """What the command line's help calls the value, like BYTES."""
    read: Callable[[object, str], float]
    write: Callable[[float], str]
    least: float = 0.0
    most: float | None = None

    def exact(self, value: float) -> str:
        """Write a value as people do where that reads back as the same number, else with all its digits."""
        text = self.write(value).replace(" ", "").replace(",", "")
        try:
            same = self.read(text, "") == value
        except InputError:
            same = False
        return text if same else f"{value:.17g}"


def _whole_of(value: object, what: str) -> int:
    return whole_of(count_of(value, what), value, what)


def _rate_of(value: object, what: str) -> float:
    """Read bytes a second: ``51GB/s`` or ``51GB``."""
    return bytes_of(value.strip().removesuffix("/s") if isinstance(value, str) else value, what)


POWER = Amount("COUNT", count_of, format_power)
COUNT = Amount("COUNT", count_of, format_count)
TOKENS = Amount("COUNT", whole_count_of, format_count, 1)
BYTES = Amount("BYTES", bytes_of, format_bytes)
BYTES_PER_SECOND = Amount("BYTES/s", _rate_of, lambda value: f"{format_bytes(value)}/s")
BITS = Amount("BITS", bits_of, "{:g}".format, 1, 64)
CONTEXT = Amount("TOKENS", context_of, "{:,.0f}".format, 1, 1e9)
WHOLE = Amount("COUNT", _whole_of, "{:,.0f}".format, 1, 1e9)


@dataclass(frozen=True)
class Slider:
    """How the page offers a field."""

    low: float = 0.0
    high: float = 0.0
    """The ends of a logarithmic slider; ``steps`` instead for a list of values."""
    steps: tuple[float, ...] = ()
    start: str = ""
    """The value when the control is switched on."""
    none: str | None = None
    """What the empty field shows, for a control that can be switched off."""
    first: str = ""
    """The value of the first view; empty for none."""
    more: bool = False
    """Whether it stands among the further limits, which are folded away."""


@dataclass(frozen=True)
class BudgetField:
    """One limit or setting of a budget."""

    label: str
    """In sentences: "memory"."""
    amount: Amount
    group: Group
    help: str
    slider: Slider
    _: dataclasses.KW_ONLY
    name: str = ""
    unit: str = ""
    """What follows the value in a sentence, and stands beside the control; empty where the value carries it."""
    default: float | None = None
    relaxed: float | None = None
    """For a limit: the factor by which it is loosened to see what that would buy. None for a setting."""
    counts_with: tuple[str, ...] = ()
    """It changes nothing unless one of these is set; empty for a field that always counts."""
    title: str = ""
    """On the page: "Memory at inference"; the label unless given."""
    term: str = ""
    """The entry of the page's glossary."""
    need: Callable[[Grid], FloatArray] | None = None
    """For a limit that candidates need: what each candidate needs of it, broadcast to (F, S, K, P)."""
    excluded: str = "needs {need}"
    """Why a candidate is ruled out that needs more; ``{need}`` is what it needs."""

    @property
    def option(self) -> str:
        """Its option on the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def start(self) -> float:
        """The value at which the page's control starts."""
        return self.read(self.slider.start or self.slider.first)

    def read(self, value: object) -> float:
        """Return the value of this field, given as a number or as text."""
        return self.amount.read(value, self.name)

    def write(self, value: float) -> str:
        """Write a value with its unit."""
        return f"{self.amount.write(value)} {self.unit}".rstrip()

    def to_dict(self) -> dict[str, Any]:
        """Return what a page needs to build the control."""
        writers = {POWER.write: "power", CONTEXT.write: "count", WHOLE.write: "count"}
        return {
            "name": self.name,
            "label": self.title or capital(self.label),
            "unit": self.unit,
            "about": self.help,
            "group": self.group.value,
            "term": self.term,
            "default": self.default,
            "write": writers.get(self.amount.write, self.amount.name.removesuffix("/s").lower()),
            "per_second": self.amount is BYTES_PER_SECOND,
            **fields_as_json(self.slider),
            "at": self.start,
        }


def _described_by(facts: Callable[P, BudgetField]) -> Callable[P, Any]:
    """Return a function that declares a field of the budget, with the arguments of ``facts``."""

    def field(*arguments: P.args, **named: P.kwargs) -> Any:
        described = facts(*arguments, **named)
        return dataclasses.field(default=described.default, metadata={"described": described})

    return field


_field = _described_by(BudgetField)
CONTEXTS = tuple(512.0 * 2**k for k in range(12))
WIDTHS = (2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 16.0, 32.0)


@dataclass(frozen=True)
class Budget:
    """Limits on a design. None means no limit; compute or tokens must be given.

    Every quantity may be a number or text, as ``Budget(flops="5e21", memory="3GB", bits="int4")``.
    """

    flops: float | None = _field(
        "training compute", POWER, Group.COMPUTE, "Training compute, like 5e21.",
        Slider(1e18, 1e26, first="5e21"), unit="FLOPs", relaxed=2.0, term="compute",
    )  # fmt: skip
    """Training compute as the paper counts, and serving compute where ``serve_tokens`` is set."""
    real_flops: float | None = _field(
        "real training compute", POWER, Group.COMPUTE,
        "Training compute with output head, attention and expert padding, as devices run it.",
        Slider(1e18, 1e26, start="5e21", none="any", more=True), unit="FLOPs", relaxed=2.0, term="compute",
    )  # fmt: skip
    """Training compute with all that runs, from which devices, days and money are counted."""
    tokens: float | None = _field(
        "training tokens", TOKENS, Group.DATA, "Fix the training tokens; compute becomes an upper limit.",
        Slider(1e9, 1e15, start="500B", none="free", more=True), title="Fixed training tokens",
    )  # fmt: skip
    """Training tokens, when they are fixed rather than what compute allows."""
    max_tokens: float | None = _field(
        "training tokens available", TOKENS, Group.DATA, "Training tokens available; compute beyond them is unspent.",
        Slider(1e9, 1e15, start="500B", none="any"), relaxed=2.0,
    )  # fmt: skip
    """The most tokens there are to train on; compute beyond them stays unspent."""
    unique_tokens: float | None = _field(
        "unique tokens", TOKENS, Group.DATA, "Different tokens available; repeating them counts for less.",
        Slider(1e9, 1e15, start="100B", none="any", more=True),
    )  # fmt: skip
    """Different tokens there are; training beyond them repeats them, which counts for less."""
    memory: float | None = _field(
        "memory", BYTES, Group.MEMORY, "Memory for the weights, and for the KV cache with a context, like 3GB.",
        Slider(1e8, 1e12, start="3 GB", none="any", first="3 GB"), relaxed=2.0, title="Memory at inference",
        term="memory",
    )  # fmt: skip
    """Bytes for the weights, and for the KV cache where ``context`` is set."""
    bits: float = _field(
        "bits per weight", BITS, Group.MEMORY, "Bits per weight: 4, int4, fp8, bf16, or a format: q4_k_m, awq-g128.",
        Slider(steps=WIDTHS, first="4"), default=16,
    )  # fmt: skip
    """Bits a weight is stored in."""
    context: int | None = _field(
        "context", CONTEXT, Group.MEMORY, "Include the KV cache of a context of this length; 8k is 8,192.",
        Slider(steps=CONTEXTS, start="8192", none="no"), unit="tokens", counts_with=("memory", "bandwidth"),
        title="Context length",
    )  # fmt: skip
    """Context length whose KV cache must fit beside the weights."""
    batch: int = _field(
        "sequences in the KV cache", WHOLE, Group.MEMORY, "Sequences in the KV cache.",
        Slider(steps=tuple(2.0**k for k in range(11)), first="1", more=True), default=1, counts_with=("context",),
    )  # fmt: skip
    """Sequences whose keys and values are kept at once."""
    kv_bits: float = _field(
        "bits per cached number", BITS, Group.MEMORY, "Bits per number in the KV cache.",
        Slider(steps=WIDTHS, first="16", more=True), default=16, counts_with=("context",),
    )  # fmt: skip
    """Bits of a number in the KV cache."""
    kept_passes: int | None = _field(
        "passes that keep a KV cache", WHOLE, Group.MEMORY, "Passes that keep their own KV cache; the others share it.",
        Slider(steps=tuple(float(k) for k in range(1, 11)), start="1", none="all", more=True),
        counts_with=("context",),
    )  # fmt: skip
    """Passes that keep their own keys and values; None keeps all."""
    kept_window: int | None = _field(
        "positions that later passes keep", WHOLE, Group.MEMORY,
        "Positions that the passes after the first keep in the KV cache.",
        Slider(steps=tuple(64.0 * 2**k for k in range(11)), start="512", none="all", more=True),
        counts_with=("context",),
    )  # fmt: skip
    """Positions that the passes after the first keep; None keeps the whole context."""
    min_speed: float | None = _field(
        "generation speed", COUNT, Group.MEMORY, "Least tokens per second for one sequence, with a bandwidth.",
        Slider(1, 1e4, start="20", none="any"), unit="tokens/s", relaxed=0.5, title="Least generation speed",
        term="generation",
    )  # fmt: skip
    """The fewest tokens a second that the model must be able to generate for one sequence at ``bandwidth``."""
    bandwidth: float | None = _field(
        "memory bandwidth", BYTES_PER_SECOND, Group.MEMORY, "Bandwidth of the device's memory, like 51GB/s.",
        Slider(1e9, 1e14, start="51.2 GB/s", none="not known"), term="generation",
    )  # fmt: skip
    """Bytes a second that the device reads from its memory: what bounds generation."""
    cache: float | None = _field(
        "on-chip cache", BYTES, Group.MEMORY, "On-chip cache; a loop that fits it is read once for all passes.",
        Slider(1e6, 1e10, start="32 MB", none="none", more=True), counts_with=("bandwidth",),
    )  # fmt: skip
    """Bytes that stay on the chip between passes: a loop block that fits is read once per token."""
    inference_flops: float | None = _field(
        "inference cost per token", COUNT, Group.MEMORY,
        "Most FLOPs per generated token: 2 x the parameters it uses, looped ones once a pass.",
        Slider(1e8, 1e12, start="2B", none="any"), unit="FLOPs", relaxed=2.0, title="Max inference FLOPs per token",
        term="inference", need=lambda grid: grid.inference_SKP, excluded="costs {need} per token",
    )  # fmt: skip
    """The most FLOPs a generated token may cost."""
    serve_tokens: float | None = _field(
        "lifetime inference tokens", TOKENS, Group.MEMORY, "Lifetime inference tokens, charged to the compute budget.",
        Slider(1e9, 1e16, start="1T", none="none"),
    )  # fmt: skip
    """Tokens served over the model's life, paid from ``flops`` at 2 N_unroll each."""
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        for name, field in FIELDS.items():
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, field.read(value))
        if self.flops is None and self.real_flops is None and self.tokens is None:
            raise InputError("give training compute (`flops`) or training tokens (`tokens`)", where="budget")
        if self.tokens is not None and self.max_tokens is not None:
            raise InputError("give `tokens` or `max_tokens`, not both", where="budget")
        if self.memory is not None and self.memory < LEAST_MEMORY:
            raise InputError(
                f"{self.memory:g} bytes is too little for any model", field="memory", remedy="write a unit, like '16GB'"
            )
        if self.kept_passes is not None and self.kept_window is not None:
            raise InputError("give `kept_passes` or `kept_window`, not both", where="budget")
        if self.min_speed is not None and self.bandwidth is None:
            raise InputError(
                "a speed is that of a device", field="min_speed", remedy="give its memory bandwidth with `bandwidth`"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the limits that are set."""
        return {name: value for name in FIELDS if (value := getattr(self, name)) is not None}

    def lifted(self) -> Budget:
        """Return the budget without the limits that a given model may miss: what it trains on stays."""
        none: dict[str, Any] = {
            name: None for name, field in FIELDS.items() if field.relaxed and field.group is Group.MEMORY
        }
        return dataclasses.replace(self, **none)

    def chosen(self) -> dict[str, float]:
        """Return the fields that differ from their defaults and that count."""
        idle = self.idle()
        return {
            name: value for name, value in self.to_dict().items() if value != FIELDS[name].default and name not in idle
        }

    def idle(self) -> dict[str, tuple[str, ...]]:
        """Return the fields that change nothing, each with the fields of which one is missing."""
        missing: dict[str, tuple[str, ...]] = {}
        for name, field in FIELDS.items():  # a field follows those that it counts with
            unset = all(getattr(self, other) is None for other in field.counts_with)
            if field.counts_with and unset and getattr(self, name) not in (None, field.default):
                missing[name] = field.counts_with
        return missing


FIELDS: Mapping[str, BudgetField] = MappingProxyType(
    {field.name: dataclasses.replace(field.metadata["described"], name=field.name) for field in fields(Budget)}
)
"""Every field of a budget by name, in the order in which they are listed."""

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "phone": {"memory": 3e9, "bits": 4.0, "bandwidth": 51.2e9},
        "laptop-16gb": {"memory": 10e9, "bits": 4.0, "context": 8192, "bandwidth": 102.4e9},
        "rtx-4090": {"memory": 22e9, "bits": 8.0, "context": 8192, "bandwidth": DEVICES["rtx4090"].bandwidth},
        "8xh100": {"memory": 576e9, "bits": 16.0, "context": 32768, "bandwidth": 8 * DEVICES["h100"].bandwidth},
    }
)
"""Where the model is to run, as fields of a budget: the memory that is left for it, the bits of its weights, the
context, and the bandwidth: LPDDR5 at 6400 MT/s with 64 bits (phone) and 128 bits (laptop), else the maker's."""


def budget_of(budget: Budget | None, limits: Mapping[str, Any]) -> Budget:
    """Return a budget with ``limits`` by name set in it."""
    for name in limits:
        if name not in FIELDS:
            raise InputError(
                f"{shown(name)} is not a limit{nearest(name, FIELDS)}; choose from {', '.join(FIELDS)}", where="plan"
            )
    if budget is None:
        return Budget(**limits)
    if not isinstance(budget, Budget):
        raise InputError(f"plan: budget is {shown(budget)}; give a Budget, or limits by name: plan(flops='5e21')")
    return dataclasses.replace(budget, **limits)


def budget_text(budget: Budget) -> str:
    """List the limits and settings that a budget chooses."""
    return ", ".join(f"{FIELDS[name].label} {FIELDS[name].write(value)}" for name, value in budget.chosen().items())
