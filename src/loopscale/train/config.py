"""What a training run is: a TOML file, or the same in Python. The defaults follow the paper's recipe."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from loopscale.architecture.ladder import rung
from loopscale.errors import InputError, nearest, shown
from loopscale.files import Fields, read_toml
from loopscale.quantities import parse_count
from loopscale.train.data.token_store import DataSource

if TYPE_CHECKING:
    from loopscale.model import LoopedMoEConfig

INITS = ("unrolled", "stored", "none")


@dataclass(frozen=True)
class ModelSection:
    """Sizes in few words; ``options`` are fields of ``LoopedMoEConfig`` and win over them."""

    rung: str | None = None
    """A rung of the ladder, like "0.3B"; the sizes below are then the ladder's."""
    width: int = 64
    layers: int = 4
    """Stored layers: prelude, loop block and coda together."""
    edge_layers: int = 1
    """Layers of the prelude, and of the coda."""
    head_size: int = 16
    kv_heads: int | None = None
    """By default the largest of 4, 2 and 1 that divides the heads."""
    experts: int = 1
    """E: experts for each active one; 1 is a dense model."""
    active_experts: int = 2
    """k: experts that a token uses, each 1/k of the feed-forward width."""
    recurrence: int = 1
    residual_init: str = "unrolled"
    """Divide what each layer adds to the residual stream at first by the root of twice the depth: the "unrolled" depth,
    which counts every pass, the "stored" one, or by nothing ("none")."""
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, data: dict[str, Any], where: str) -> ModelSection:
        """Read the table of a file: its keys are the fields above and the options of the model."""
        hints = get_type_hints(cls)
        own = [each.name for each in fields(cls) if each.name != "options"]
        opened = Fields({key: value for key, value in data.items() if key in own}, where)
        given: dict[str, Any] = {}
        for name in own:
            if data.get(name) is not None:
                given[name] = opened.take(name, str if "str" in str(hints[name]) else int)
        rest = {key: value for key, value in data.items() if key not in own}
        if rest:
            from loopscale.model import LoopedMoEConfig

            known = [*own, *(n for n in LoopedMoEConfig.__annotations__ if n not in ("model_type", "format_version"))]
            for key in rest:
                if key not in known:
                    raise InputError(f"{where}: unknown field {shown(key)}{nearest(str(key), known)}")
        return cls(**given, options=rest)

    def config(self, vocabulary: int, context: int, **special: int | None) -> LoopedMoEConfig:
        """Return the model's configuration for a tokenizer; impossible shapes are refused here."""
        from loopscale.model import LoopedMoEConfig

        if self.residual_init not in INITS:
            raise InputError(
                f"[model]: field 'residual_init' is {shown(self.residual_init)}"
                f"{nearest(self.residual_init, INITS)}; choose from {', '.join(INITS)}"
            )
        common = {"vocab_size": vocabulary, "max_position_embeddings": context, **special}
        try:
            if self.rung is not None:
                built = replace(rung(self.rung, self.experts, self.active_experts), vocabulary=vocabulary)
                return LoopedMoEConfig.from_architecture(
                    built, recurrence=self.recurrence, **{**common, **self.options}
                )
            return LoopedMoEConfig(**{**self._sizes(), **common, **self.options})
        except InputError as error:
            raise InputError(f"[model]: {error}") from None

    def _sizes(self) -> dict[str, Any]:
        for name in ("width", "layers", "head_size", "experts", "active_experts", "recurrence"):
            if getattr(self, name) < 1:
                raise InputError(f"field {name!r} is {getattr(self, name)}; it should be 1 or more")
        if self.width % self.head_size:
            raise InputError(f"field 'width' is {self.width}, no multiple of head_size {self.head_size}")
        loop = self.layers - 2 * self.edge_layers
        if self.edge_layers < 0 or loop < 1:
            raise InputError(
                f"field 'layers' is {self.layers}, which leaves no loop block between prelude and coda of "
                f"{self.edge_layers} each; give {2 * self.edge_layers + 1} or more"
            )
        if 4 * self.width % self.active_experts:
            raise InputError(
                f"field 'active_experts' is {self.active_experts}, which does not divide the feed-forward width "
                f"{4 * self.width}"
            )
        heads = self.width // self.head_size
        return {
            "hidden_size": self.width,
            "prelude_layers": self.edge_layers,
            "loop_layers": loop,
            "coda_layers": self.edge_layers,
            "recurrence": self.recurrence,
            "num_attention_heads": heads,
            "num_key_value_heads": self.kv_heads or next(n for n in (4, 2, 1) if heads % n == 0 and n <= heads),
            "head_dim": self.head_size,
            "intermediate_size": 4 * self.width,
            "num_experts": 1 if self.experts == 1 else self.experts * self.active_experts,
            "num_experts_per_tok": self.active_experts,
            "moe_intermediate_size": 4 * self.width // self.active_experts,
            # 0.02 is for widths near a thousand; narrower layers need larger weights for outputs of the same size.
            "initializer_range": 0.02 * max(1.0, math.sqrt(768 / self.width)),
        }


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
