"""What a training run is: a TOML file, or the same in Python. The defaults follow the paper's recipe."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from loopscale.errors import InputError, nearest, shown
from loopscale.files import Fields, read_toml
from loopscale.quantities import parse_count
from loopscale.train.model_section import ModelSection
from loopscale.train.shards import DataSource

SCHEMA = 1
DEMO: dict[str, Any] = {
    "model": {"width": 64, "experts": 4, "recurrence": 2},
    "data": {"context": 128},
    "run": {"tokens": "2M"},
}
"""What ``loopscale train`` trains without a file: a minute or two on two cores, on the built-in corpus."""
T = TypeVar("T")


@dataclass(frozen=True)
class DataSection(DataSource):
    """Where the text comes from, and how it is cut."""

    context: int = 2048
    """Tokens of a packed sequence."""
    separate: bool = False
    """Keep attention within each document of a packed sequence, at the price of an explicit mask."""
    folder: str | None = None
    """Where the token shards are kept; by default in the user's cache, shared by all runs on the same text."""


@dataclass(frozen=True)
class OptimizerSection:
    """AdamW."""

    learning_rate: float = 3e-3
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-15
    weight_decay: float = 0.1
    """On matrices; norms and biases have none."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 for no clipping."""
    width_rule: str = "none"
    """ "mup" divides the rate of hidden matrices by width / base_width, so that one rate serves all widths."""
    base_width: int = 64
    recurrence_rule: float = 0.0
    """The rate is divided by R to this power: gradients of shared weights add up over passes."""


@dataclass(frozen=True)
class ScheduleSection:
    """The learning rate over a run."""

    kind: str = "cosine"
    """ "cosine", "wsd" (warm-up, stable, decay) or "constant"."""
    warmup_steps: int = 100
    cooldown: float = 0.2
    """Share of a "wsd" run in which the rate falls to ``final``, in a straight line."""
    final: float = 0.0
    """The last rate, as a share of the highest."""


@dataclass(frozen=True)
class RunSection:
    """How long, how large a batch, and what is kept."""

    tokens: float = 20e6
    """D: tokens seen in all; written like "20M" in a file."""
    batch: int = 16
    """Sequences of a step, over all processes."""
    accumulate: int = 1
    """Parts that a process computes its share of a batch in, one after the other."""
    seed: int = 0
    precision: str = "auto"
    """ "fp32", "bf16" (weights and products in bf16; optimiser, gradients and routers in fp32) or "auto"."""
    compile: bool = False
    """Compile each block with torch.compile: slower to start, faster for long runs of small models."""
    activation_checkpointing: bool = False
    log_every: int = 10
    validate_every: int = 0
    """Steps between validations; 0 validates at the end only."""
    validation_sequences: int = 256
    checkpoint_every: int = 500
    keep: int = 2
    """Checkpoints that stay on disk."""
    divergence: float = 2.0
    """Stop when the loss, averaged over 50 steps, stands this many nats above its lowest."""
    track: tuple[str, ...] = ()
    """Trackers beside metrics.jsonl: "tensorboard", "wandb", "trackio"."""


@dataclass(frozen=True)
class ParallelSection:
    """How processes started by torchrun share the work; one process needs none of it."""

    experts: int = 1
    """Processes that hold a layer's experts together; the others are replicas of such a group."""


@dataclass(frozen=True)
class TrainConfig:
    """A training run."""

    model: ModelSection = field(default_factory=ModelSection)
    data: DataSection = field(default_factory=DataSection)
    optimizer: OptimizerSection = field(default_factory=OptimizerSection)
    schedule: ScheduleSection = field(default_factory=ScheduleSection)
    run: RunSection = field(default_factory=RunSection)
    parallel: ParallelSection = field(default_factory=ParallelSection)

    def __post_init__(self) -> None:
        _check(self)

    @property
    def step_tokens(self) -> int:
        """Tokens of one step."""
        return self.run.batch * self.data.context

    @property
    def steps(self) -> int:
        """Steps of the whole run: tokens are rounded to whole steps, one at least."""
        return max(1, round(self.run.tokens / self.step_tokens))

    def changed(self, **sections: dict[str, Any]) -> TrainConfig:
        """Return a copy with some values changed: ``config.changed(model={"recurrence": 4}, run={"seed": 1})``."""
        return replace(self, **{name: replace(getattr(self, name), **given) for name, given in sections.items()})

    def to_dict(self) -> dict[str, Any]:
        """Return what ``from_dict`` reads; plain values, for JSON."""
        found: dict[str, Any] = _plain(asdict(self))
        options = found["model"].pop("options")
        found["model"] |= options
        return {"schema": SCHEMA, **found}

    @classmethod
    def from_dict(cls, data: object, where: str = "config") -> TrainConfig:
        """Read a run from a mapping; an unknown key is refused with the nearest known one."""
        opened = Fields(data, where)
        schema = opened.take("schema", int, SCHEMA)
        if not 1 <= schema <= SCHEMA:
            raise InputError(f"{where}: schema is {schema}; this loopscale reads up to {SCHEMA}; upgrade loopscale")
        kinds = get_type_hints(cls)
        sections = {name: _section(opened, name, kind) for name, kind in kinds.items()}
        opened.done()
        try:
            return cls(**sections)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None

    @classmethod
    def read(cls, path: str | Path) -> TrainConfig:
        """Read a TOML file."""
        return cls.from_dict(read_toml(path), str(path))


def _section(opened: Fields, name: str, kind: type[T]) -> T:
    """Read one table of the file into its dataclass."""
    data = opened.take(name, dict, {})
    where = f"{opened.where}: [{name}]"
    if kind is ModelSection:
        return ModelSection.read(data, where)  # type: ignore[return-value]
    hints = get_type_hints(kind)
    assert is_dataclass(kind)
    known = [each.name for each in fields(kind)]
    for key in data:
        if key not in known:
            raise InputError(f"{where}: unknown field {shown(key)}{nearest(str(key), known)}")
    given = {key: _value(value, hints[key], f"{where}: field {key!r}") for key, value in data.items()}
    return kind(**given)


def _value(value: Any, kind: Any, where: str) -> Any:
    """Return ``value`` as the annotated kind; quantities may be written like "20M"."""
    if get_origin(kind) in (Union, UnionType):
        return None if value is None else _value(value, get_args(kind)[0], where)
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        fixed = inner[-1] is not Ellipsis
        if not isinstance(value, list | tuple) or (fixed and len(value) != len(inner)):
            raise InputError(f"{where} is {shown(value)}; it should be a list{f' of {len(inner)}' if fixed else ''}")
        return tuple(_value(each, inner[0], where) for each in value)
    if kind is float and isinstance(value, str):
        return parse_count(value, where)
    single = Fields({"value": value}, where)
    try:
        return single.take("value", kind)
    except InputError:
        word = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text"}[kind]
        raise InputError(f"{where} is {shown(value)}; it should be {word}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


_LEAST: dict[str, dict[str, float]] = {
    "data": {"context": 2},
    "optimizer": {"eps": 0, "weight_decay": 0, "clip": 0, "base_width": 1},
    "schedule": {"warmup_steps": 0, "cooldown": 0, "final": 0},
    "run": {
        "tokens": 1,
        "batch": 1,
        "accumulate": 1,
        "log_every": 1,
        "validate_every": 0,
        "validation_sequences": 1,
        "checkpoint_every": 0,
        "keep": 1,
        "divergence": 0,
        "seed": 0,
    },
    "parallel": {"experts": 1},
}
_CHOICES = {
    ("schedule", "kind"): ("cosine", "wsd", "constant"),
    ("run", "precision"): ("auto", "fp32", "bf16"),
    ("optimizer", "width_rule"): ("none", "mup"),
}
TRACKERS = ("tensorboard", "wandb", "trackio")


def _check(config: TrainConfig) -> None:
    """Refuse values that no run can have."""
    for section, bounds in _LEAST.items():
        for name, least in bounds.items():
            value = getattr(getattr(config, section), name)
            if not value >= least:
                raise InputError(f"[{section}]: field {name!r} is {value}; it should be {least:g} or more")
    for (section, name), choices in _CHOICES.items():
        value = getattr(getattr(config, section), name)
        if value not in choices:
            raise InputError(
                f"[{section}]: field {name!r} is {shown(value)}{nearest(value, choices)}; "
                f"choose from {', '.join(choices)}"
            )
    for tracker in config.run.track:
        if tracker not in TRACKERS:
            raise InputError(
                f"[run]: field 'track' names {shown(tracker)}{nearest(tracker, TRACKERS)}; "
                f"choose from {', '.join(TRACKERS)}"
            )
    if not config.optimizer.learning_rate > 0:
        raise InputError(
            f"[optimizer]: field 'learning_rate' is {config.optimizer.learning_rate}; it should be above 0"
        )
    if not all(0 <= beta < 1 for beta in config.optimizer.betas):
        raise InputError(f"[optimizer]: field 'betas' is {config.optimizer.betas}; both should be from 0 to below 1")
    if config.schedule.cooldown > 1 or config.schedule.final > 1:
        raise InputError("[schedule]: fields 'cooldown' and 'final' are shares; they should be from 0 to 1")
    if config.run.batch % config.run.accumulate:
        raise InputError(
            f"[run]: field 'batch' is {config.run.batch}, which {config.run.accumulate} parts ('accumulate') do not "
            "divide"
        )
