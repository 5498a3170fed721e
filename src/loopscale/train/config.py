"""The settings of a training run: a TOML file, or the same in Python."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from loopscale.architecture import rung
from loopscale.core.errors import InputError, nearest, shown
from loopscale.core.files import read_toml
from loopscale.core.schemas import Between, Bytes, Count, Record, Whole, parse
from loopscale.planning.recipes import RECIPES

if TYPE_CHECKING:
    from loopscale.model import LoopedMoEConfig
    from loopscale.train.data.tasks import Task

SCHEMA = 1
FIXED = {("model", "placement"): "edges"}
"""Settings of version 0.2, with the only value that they have now: runs saved with it can be read."""
DEMO: dict[str, Any] = {
    "model": {"width": 64, "experts": 4, "recurrence": 2},
    "data": {"context": 128},
    "run": {"tokens": "2M"},
}
"""What ``loopscale train`` trains without a file: a minute or two on two cores, on the built-in corpus."""

FromZero = Annotated[int, Between(0, 10**15)]
"""A whole number that may be zero."""
Share = Annotated[float, Field(ge=0, le=1)]
Tracker = Literal["tensorboard", "wandb", "trackio"]


class ModelSection(Record):
    """Sizes of the model; any other field of ``LoopedMoEConfig`` may be set here too and overrides them."""

    init_from: str | None = None
    """Start from the weights of a model: the folder of a run or of its model, or what `loopscale convert` wrote. Sizes,
    options and tokenizer are that model's. ``experts`` may be a multiple of its own, and ``recurrence`` any number."""
    rung: str | None = None
    """A rung of the ladder, like "0.3B": it sets width, layers, head size and key-value heads."""
    width: Whole = 64
    layers: Whole = 4
    """Stored layers: prelude, loop block and coda together."""
    edge_layers: FromZero = 1
    """Layers of the prelude, and as many of the coda."""
    head_size: Whole = 16
    kv_heads: Whole | None = None
    """Key-value heads; by default the largest of 4, 2 and 1 that divides the heads."""
    experts: Whole = 1
    """E: experts for each active one; 1 is a dense model."""
    active_experts: Whole = 2
    """k: experts that a token uses, each 1/k of the feed-forward width."""
    recurrence: Whole = 1
    """R: passes through the loop block."""
    residual_init: Literal["unrolled", "zero"] = "unrolled"
    """Scale the initial output of each layer by 1/sqrt(2 * depth), where the "unrolled" depth counts every pass. "zero"
    starts the output projections at zero, so that every layer first returns its input."""
    options: dict[str, Any] = Field(default_factory=dict, json_schema_extra={"additionalProperties": True})
    """Further fields of ``LoopedMoEConfig``; in a file they stand in the table itself."""

    @model_validator(mode="before")
    @classmethod
    def _gather_options(cls, data: Any) -> Any:
        """Move fields of the model's configuration to ``options``; refuse unknown ones with the nearest name."""
        if not isinstance(data, dict):
            return data
        own = {key: value for key, value in data.items() if key in cls.model_fields}
        rest = {key: value for key, value in data.items() if key not in cls.model_fields}
        if rest:
            from loopscale.model import LoopedMoEConfig

            hidden = ("model_type", "format_version")
            known = [*cls.model_fields, *(name for name in LoopedMoEConfig.__annotations__ if name not in hidden)]
            for key in rest:
                if key not in known:
                    raise ValueError(f"unknown field {shown(key)}{nearest(str(key), known)}")
        return own | {"options": {**own.get("options", {}), **rest}}

    def config(self, vocabulary: int, context: int, **special: int | None) -> LoopedMoEConfig:
        """Return the model's configuration for a tokenizer; impossible shapes are refused here."""
        from loopscale.model import LoopedMoEConfig

        vocabulary = self.options.get("vocab_size", vocabulary)
        common = {"vocab_size": vocabulary, "max_position_embeddings": context, **special}
        try:
            if self.rung is not None:
                built = replace(rung(self.rung, self.experts, self.active_experts), vocabulary=vocabulary)
                return LoopedMoEConfig.from_architecture(
                    built, recurrence=self.recurrence, **{**common, **self.options}
                )
            return LoopedMoEConfig(**{**self._sizes(), **common, **self.options})
        except InputError as error:
            raise error.within("[model]") from None

    def _sizes(self) -> dict[str, Any]:
        if self.width % self.head_size:
            raise InputError(f"field 'width' is {self.width}, no multiple of head_size {self.head_size}")
        loop_layers = self.layers - 2 * self.edge_layers
        if loop_layers < 1:
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
            "loop_layers": loop_layers,
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


class SourceSection(Record):
    """One source of a mixture."""

    files: tuple[str, ...] = ()
    dataset: str | None = None
    text_field: str = "text"


class DataSection(Record):
    """The text or task, how it becomes tokens, and how the tokens are divided into sequences."""

    task: str | None = None
    """A task with exact answers instead of text, like "s3" (`loopscale lab tasks` lists them). Its problems are drawn
    anew at every step, only their answers are targets, and the context follows from the task."""
    difficulty: Whole | None = None
    """How hard its problems are: elements of a word, hops, digits, facts; by default the task's usual difficulty."""
    task_seed: FromZero = 0
    """Selects the facts of the task "facts"."""
    format: Literal["text", "labels", "completion"] = "text"
    """What the rows of files hold: "text"; "labels", lists of ids in ``input_ids`` and ``labels`` as Hugging Face has
    them; or "completion", a ``prompt`` and a ``completion``, of which only the second is a target. Rows with targets of
    their own are not packed: each is one sequence, padded to the context."""
    mix: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Weights of a mixture by the name of the source: ``[data.mix] web = 0.6, code = 0.4``. Of every 1,000 sequences
    each source has its share at any size; a small one is repeated."""
    sources: dict[str, SourceSection] = Field(default_factory=dict)
    """The sources of the mixture: ``[data.sources.web] files = ["web/"]``, with the fields of a single source."""
    files: tuple[str, ...] = ()
    """Text (.txt, .text, .md), JSONL (.jsonl, .ndjson), each also with .gz, Parquet, or folders and globs of them.
    Without files and dataset: the built-in corpus."""
    dataset: str | None = None
    """A `datasets` name or folder, streamed: ``name``, ``name:config`` or ``name:config:split`` (by default train)."""
    text_field: str = "text"
    """The field that holds the text, in files and datasets that have rows."""
    tokenizer: str = "bytes"
    """``bytes``, ``train:1024`` (a BPE of that vocabulary, trained on the training documents), or the folder or name of
    a Hugging Face tokenizer."""
    validation: float = Field(default=0.01, ge=0, lt=1)
    """Fraction of documents held out. It depends on the text of a document only, so equal documents are in the same
    split. Of a text so small that none would be, some documents or the end of each are held out; 0 holds out none."""
    context: Annotated[int, Between(2, 10**9)] = 2048
    """Tokens of a packed sequence."""
    document_mask: bool = False
    """Keep attention within each document of a packed sequence, at the cost of an explicit mask."""
    folder: str | None = None
    """Folder of the token shards; by default in the user's cache, shared by all runs on the same text."""
    processes: Whole | None = None
    """Processes that tokenise in parallel, each on one core; by default one, whose library uses every core."""

    @model_validator(mode="before")
    @classmethod
    def _read_forms(cls, data: Any) -> Any:
        """Take one file for a list, and the context that a task has."""
        if not isinstance(data, dict):
            return data
        task = _task_of(data)
        data = data if task is None else {"context": task.length + 1, **data}
        sources = data.get("sources")
        if isinstance(sources, dict):
            data = data | {"sources": {name: _with_tuple(source) for name, source in sources.items()}}
        return _with_tuple(data)

    @model_validator(mode="after")
    def _targets_have_a_source(self) -> DataSection:
        reads = self.files or self.dataset or self.mix
        if self.task is None and (self.difficulty is not None or self.task_seed):
            raise ValueError("'difficulty' and 'task_seed' belong to a 'task', and there is none")
        if self.task is not None:
            if reads or self.format != "text" or self.tokenizer != "bytes":
                raise ValueError(f"the task {self.task!r} has its own tokens: leave out files, tokenizer and format")
            if (task := _task_of(self.model_dump())) is not None and self.context != task.length + 1:
                raise ValueError(f"a problem of {self.task!r} has {task.length + 1} tokens: leave 'context' out")
        elif self.format != "text" and (not self.files or self.mix):
            raise ValueError(f"format {self.format!r} is for 'files' of rows (JSONL or Parquet)")
        if self.document_mask and (self.task is not None or self.format != "text"):
            raise ValueError("'document_mask' is for packed text; each of these rows is a separate sequence")
        if self.format == "labels" and self.tokenizer.startswith("train"):
            raise ValueError("rows of ids hold no text to train a tokenizer on: name the tokenizer of the ids")
        return self

    @model_validator(mode="after")
    def _mixture_is_complete(self) -> DataSection:
        if set(self.mix) != set(self.sources):
            raise ValueError(
                f"'mix' names {', '.join(sorted(self.mix)) or 'no source'}, and 'sources' has "
                f"{', '.join(sorted(self.sources)) or 'none'}; every source needs a weight, and every weight a source"
            )
        if self.mix and (self.files or self.dataset):
            raise ValueError("'files' and 'dataset' of a mixture belong to its sources")
        if self.mix and self.tokenizer.startswith("train"):
            raise ValueError(
                "a mixture needs a tokenizer that does not depend on its sources: 'bytes', or the folder or name of one"
            )
        return self


def _task_of(data: Mapping[Any, Any]) -> Task | None:
    """Return the task that the fields of [data] name, if they name one; mistakes are told by their fields."""
    from loopscale.train.data.puzzles import task_called

    name, difficulty = data.get("task"), data.get("difficulty")
    if not isinstance(name, str) or not isinstance(difficulty, int | None):
        return None
    seed = data.get("task_seed", 0)
    return task_called(name, difficulty, seed if isinstance(seed, int) else 0)


def _with_tuple(table: Any) -> Any:
    """Return a table with its files as a tuple: after a validator of the whole table pydantic accepts no list."""
    files = table.get("files", ()) if isinstance(table, dict) else ()
    if not isinstance(table, dict) or not isinstance(files, str | list):
        return table
    return table | {"files": (files,) if isinstance(files, str) else tuple(files)}


class OptimizerSection(Record):
    """AdamW, or Muon."""

    name: Literal["adamw", "muon"] = "adamw"
    """ "muon" updates the matrices of hidden layers, experts one by one, by Muon, and all else by AdamW. Its updates
    have the size of AdamW's, and it stores one moment instead of two; its best rate may be higher."""
    learning_rate: float = Field(default=3e-3, gt=0)
    """Peak learning rate."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    eps: float = Field(default=1e-15, ge=0)
    weight_decay: float = Field(default=0.1, ge=0)
    """Applied to matrices; norms and biases have none."""
    clip: float = Field(default=1.0, ge=0)
    """Maximum norm of the gradient; 0 for no clipping."""
    width_rule: Literal["none", "mup"] = "none"
    """ "mup" divides the rate of hidden matrices by width / base_width, so that one rate serves all widths."""
    base_width: Whole = 64
    recurrence_rule: float = 0.0
    """The rate is divided by R to this power: gradients of shared weights add up over passes."""


class ScheduleSection(Record):
    """The learning rate over a run."""

    kind: Literal["cosine", "wsd", "constant"] = "cosine"
    """ "cosine", "wsd" (warm-up, stable, decay) or "constant"."""
    warmup_steps: FromZero = 100
    cooldown: Share = 0.2
    """Fraction of a "wsd" run in which the rate falls linearly to ``final``."""
    final: Share = 0.0
    """The last rate, as a fraction of the peak."""
    recurrence: tuple[tuple[Share, Whole], ...] = ()
    """R over the run: pairs of a fraction of the steps and the R from there on, like [[0, 1], [0.7, 4]]. Empty: the
    model's R throughout. With ``random_recurrence`` R is drawn around it."""

    @model_validator(mode="after")
    def _recurrence_begins_at_zero(self) -> ScheduleSection:
        starts = [start for start, _ in self.recurrence]
        if starts and (starts[0] != 0 or starts != sorted(set(starts)) or starts[-1] >= 1):
            raise ValueError(
                f"'recurrence' has the fractions {starts}; they should begin at 0, rise, and stay below 1, like "
                "[[0, 1], [0.7, 4]]"
            )
        return self


class RunSection(Record):
    """Length, batch size, precision, reports and checkpoints."""

    tokens: Count = 20e6
    """D: tokens of the whole run, like "20M"."""
    batch: Whole = 16
    """Sequences of a step, over all processes."""
    accumulate: Whole | Literal["auto"] = 1
    """Parts in which a process computes its share of a batch, one after the other. "auto" chooses the fastest number
    that fits the devices, with what is recomputed and how processes share the work where those are not set; the run's
    folder holds the choice."""
    seed: FromZero = 0
    precision: Literal["auto", "fp32", "bf16", "bf16-weights"] = "auto"
    """ "fp32", "bf16" (products in bf16; weights, optimiser, gradients and routers in fp32), "bf16-weights" (weights
    stored in bf16 too, as the paper states; optimiser, gradients and routers stay fp32), or "auto": bf16 on GPUs.
    Weights in bf16 lose updates that are smaller than their last digit."""
    compile: bool | Literal["auto"] = False
    """Compile each block with torch.compile: slower to start, faster for long runs. "auto" does where a compiler is at
    hand and the run is long enough to repay it; the run's folder holds the choice."""
    activation_checkpointing: bool = False
    """Recompute the activations of each block in backward instead of storing them."""
    activation_memory: Bytes | None = None
    """Memory for activations on each process, like "20GB": as many blocks as do not fit are recomputed in backward."""
    ema: float = Field(default=0.0, ge=0, lt=1)
    """Average the weights with this decay, like 0.999: validation and the finished model use the average. 0: none."""
    log_every: Whole = 10
    """Steps between rows of metrics."""
    validate_every: FromZero = 0
    """Steps between validations; 0 validates at the end only."""
    validation_sequences: Whole = 256
    checkpoint_every: FromZero = 500
    """Steps between checkpoints; 0 writes one at the end only."""
    keep: Whole = 2
    """Number of checkpoints kept on disk."""
    async_checkpoints: bool = False
    """Write checkpoints in the background, from a copy in host memory, while training continues."""
    divergence: float = Field(default=2.0, ge=0)
    """Stop when the mean loss of 50 steps is this many nats above its lowest; 0 never stops."""
    skip_spikes: FromZero = 0
    """Skip up to this many batches whose loss is not finite or more than ``spike`` nats above the mean of the last 50;
    each is recorded in metrics.jsonl. 0 skips none."""
    spike: float = Field(default=1.0, gt=0)
    deterministic: Literal["auto", "on", "off"] = "auto"
    """Use deterministic kernels, so that runs repeat bit for bit: "auto" does on the CPU, and not on GPUs."""
    track: tuple[Tracker, ...] = ()
    """Trackers beside metrics.jsonl."""
    law: str | None = None
    """A law, by file or published name, that forecasts the final loss. Its interval is in every row that has a
    validation loss, with an alarm when the run leaves it."""
    law_slack: float = Field(default=0.1, ge=0)
    """Nats that a run may be above the forecast before its end: what the decay of the rate still gains."""
    eval_tasks: str | None = None
    """lm-eval tasks to run during training, as for `loopscale eval --tasks`: their scores are in metrics.jsonl."""
    eval_every: FromZero = 0
    """Steps between these evaluations; 0 evaluates at the end only."""
    eval_limit: Whole = 100
    """Examples of each task."""

    @model_validator(mode="after")
    def _parts_divide_the_batch(self) -> RunSection:
        if self.accumulate != "auto" and self.batch % self.accumulate:
            raise ValueError(f"'batch' is {self.batch}, which {self.accumulate} parts ('accumulate') do not divide")
        return self

    @property
    def parts(self) -> int:
        """The number of parts, once it is chosen."""
        if self.accumulate == "auto":
            raise InputError("[run]: 'accumulate' is \"auto\", and nothing has chosen a number yet")
        return self.accumulate

    @property
    def recomputes(self) -> bool:
        """Whether some activations are recomputed."""
        return self.activation_checkpointing or self.activation_memory is not None


class ParallelSection(Record):
    """How processes started by torchrun share the work; one process needs none of it."""

    experts: Whole = 1
    """Number of neighbouring processes that hold the experts of a layer together. For large E: with drop-and-pad it
    exchanges tokens instead of gathering experts."""
    replicas: Whole = 1
    """Copies of the sharded model: weights are sharded within a copy, gradients summed over copies (HSDP). With one
    copy per node, gathering stays within the node."""
    reduce: Literal["step", "pass", "block"] = "step"
    """When the gradients of the loop are reduced: once per "step" (least communication), after each "pass" (they stay
    sharded), or for each "block" by itself (least memory)."""
    offload: bool = False
    """Keep the shards of weights, gradients and optimiser in the memory of the host; a GPU holds only what it works
    on. AdamW then runs on the CPU, and every step moves all weights over the bus."""


class RecipeSection(Record):
    """A named set of values for the other sections; values in the file override it."""

    name: Literal["none", "paper", "paper-supervised"] = "none"


class CallbackSection(Record):
    """A callback that the run has beside those that its other settings ask for."""

    use: str = Field(pattern=r"^([A-Za-z_]\w*(\.[A-Za-z_]\w*)*:)?[A-Za-z_]\w*$")
    """One of loopscale's by name, like "LossWatch", or your own, like "my_module:MyCallback". Code from outside
    loopscale runs only where it is asked for: ``loopscale train --allow-code``, ``train(…, allow_code=True)``."""
    options: dict[str, Any] = Field(default_factory=dict, json_schema_extra={"additionalProperties": True})
    """Arguments of the callback; in a file they stand in the table itself."""

    @model_validator(mode="before")
    @classmethod
    def _gather_options(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        own = {key: value for key, value in data.items() if key in cls.model_fields}
        return own | {"options": {**own.get("options", {}), **{k: v for k, v in data.items() if k not in own}}}

    @property
    def is_code(self) -> bool:
        """Whether it names a module instead of one of loopscale's callbacks."""
        return ":" in self.use


class TrainConfig(Record):
    """A training run."""

    recipe: RecipeSection = Field(default_factory=RecipeSection)
    model: ModelSection = Field(default_factory=ModelSection)
    data: DataSection = Field(default_factory=DataSection)
    optimizer: OptimizerSection = Field(default_factory=OptimizerSection)
    schedule: ScheduleSection = Field(default_factory=ScheduleSection)
    run: RunSection = Field(default_factory=RunSection)
    parallel: ParallelSection = Field(default_factory=ParallelSection)
    callbacks: tuple[CallbackSection, ...] = ()

    @model_validator(mode="after")
    def _recurrence_within_the_models(self) -> TrainConfig:
        most = max((passes for _, passes in self.schedule.recurrence), default=0)
        if most > self.model.recurrence:
            raise ValueError(
                f"[schedule]: 'recurrence' goes up to {most}, and the model's 'recurrence' is {self.model.recurrence}; "
                "raise the model's"
            )
        return self

    @model_validator(mode="after")
    def _benchmarks_read_text(self) -> TrainConfig:
        if self.run.eval_tasks is not None and self.data.task is not None:
            raise ValueError(f"[run]: 'eval_tasks' asks questions in text, and the task {self.data.task!r} has none")
        return self

    @property
    def task(self) -> Task | None:
        """The task of [data], if it names one."""
        return _task_of(self.data.model_dump())

    @property
    def step_tokens(self) -> int:
        """Tokens of one step."""
        return self.run.batch * self.data.context

    @property
    def steps(self) -> int:
        """Steps of the whole run: tokens are rounded to whole steps, at least one."""
        return max(1, round(self.run.tokens / self.step_tokens))

    def changed(self, **sections: dict[str, Any]) -> TrainConfig:
        """Return a copy with some values changed: ``config.changed(model={"recurrence": 4}, run={"seed": 1})``."""
        values = self.to_dict()
        return self.from_dict(values | {name: values[name] | given for name, given in sections.items()})

    def to_dict(self) -> dict[str, Any]:
        """Return what ``from_dict`` reads; plain values, for JSON."""
        values = self.model_dump(mode="json")
        values["model"] |= values["model"].pop("options")
        values["callbacks"] = [{"use": listed["use"], **listed["options"]} for listed in values["callbacks"]]
        if not values["callbacks"]:
            del values["callbacks"]
        return {"schema": SCHEMA, **values}

    @classmethod
    def from_dict(cls, data: object, where: str = "config") -> TrainConfig:
        """Read a run from a mapping; an unknown key is refused with the nearest known one."""
        if isinstance(data, dict) and "schema" in data:
            schema = data["schema"]
            if not isinstance(schema, int) or not 1 <= schema <= SCHEMA:
                raise InputError(
                    f"{where}: schema is {shown(schema)}; this loopscale reads up to {SCHEMA}; upgrade loopscale"
                )
            data = {key: _without_fixed(key, value, where) for key, value in data.items() if key != "schema"}
        from loopscale.train.start import with_start

        return parse(cls, _with_recipe(with_start(data)), where)

    @classmethod
    def read(cls, path: str | Path) -> TrainConfig:
        """Read a TOML file."""
        return cls.from_dict(read_toml(path), str(path))


def _without_fixed(section: str, values: Any, where: str) -> Any:
    """Return the values of a saved section without settings that cannot be changed any more."""
    if not isinstance(values, dict):
        return values
    for (owner, name), value in FIXED.items():
        if owner == section and values.get(name, value) != value:
            raise InputError(
                f"[{section}] {name} is {shown(values[name])}, and this version knows only {value!r}",
                where=where,
                remedy="use the version of loopscale that wrote it",
            )
    return {name: value for name, value in values.items() if (section, name) not in FIXED}


def _with_recipe(data: object) -> object:
    """Return the values of a file with those of its recipe beneath them."""
    section = data.get("recipe") if isinstance(data, dict) else None
    recipe = RECIPES.get(str(section.get("name"))) if isinstance(section, dict) else None
    if not recipe or not isinstance(data, dict):
        return data
    sections = {name: data.get(name, {}) for name in recipe}
    return data | {name: recipe[name] | own if isinstance(own, dict) else own for name, own in sections.items()}
