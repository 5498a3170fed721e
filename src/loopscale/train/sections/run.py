"""``[run]``, ``[parallel]``, ``[resources]``, ``[recipe]`` and ``[[callbacks]]``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from loopscale.core.devices import NODE, UTILISATION
from loopscale.core.errors import InputError
from loopscale.core.schemas import Bytes, Count, FromZero, Record, Whole
from loopscale.train.sections import MayChange, with_options

Tracker = Literal["tensorboard", "wandb", "trackio"]


class RunSection(Record):
    """Length, batch size, precision, reports and checkpoints."""

    tokens: MayChange[Count] = 20e6
    """D: tokens of the whole run, like "20M"."""
    batch: Whole = 16
    """Sequences of a step, over all processes."""
    accumulate: MayChange[Whole | Literal["auto"]] = 1
    """Parts in which a process computes its share of a batch, one after the other. "auto" chooses the fastest number
    that fits the devices, with what is recomputed and how processes share the work where those are not set; the run's
    folder holds the choice."""
    seed: FromZero = 0
    precision: Literal["auto", "fp32", "bf16", "bf16-weights"] = "auto"
    """ "fp32", "bf16" (products in bf16; weights, optimiser, gradients and routers in fp32), "bf16-weights" (weights
    stored in bf16 too, as the paper states; optimiser, gradients and routers stay fp32), or "auto": bf16 on GPUs.
    Weights in bf16 lose updates that are smaller than their last digit."""
    compile: MayChange[bool | Literal["auto"]] = False
    """Compile each block with torch.compile, and multiply by oneDNN on AMD processors: slower to start, faster for long
    runs. "auto" does where a compiler is at hand and the run is long enough to repay it; the run's folder holds the
    choice."""
    activation_checkpointing: MayChange[bool] = False
    """Recompute the activations of each block in backward instead of storing them."""
    activation_memory: MayChange[Bytes | None] = None
    """Memory for activations on each process, like "20GB": as many blocks as do not fit are recomputed in backward."""
    ema: float = Field(default=0.0, ge=0, lt=1)
    """Average the weights with this decay, like 0.999: validation and the finished model use the average. 0: none."""
    log_every: MayChange[Whole] = 10
    """Steps between rows of metrics."""
    validate_every: MayChange[FromZero] = 0
    """Steps between validations; 0 validates at the end only."""
    validation_sequences: MayChange[Whole] = 256
    checkpoint_every: MayChange[FromZero] = 500
    """Steps between checkpoints; 0 writes one at the end only."""
    keep: MayChange[Whole] = 2
    """Number of checkpoints kept on disk."""
    async_checkpoints: MayChange[bool] = False
    """Write checkpoints in the background, from a copy in host memory, while training continues."""
    divergence: MayChange[float] = Field(default=2.0, ge=0)
    """Stop when the mean loss of 50 steps is this many nats above its lowest; 0 never stops."""
    skip_spikes: FromZero = 0
    """Skip up to this many batches whose loss is not finite or more than ``spike`` nats above the mean of the last 50;
    each is recorded in metrics.jsonl. 0 skips none."""
    spike: float = Field(default=1.0, gt=0)
    deterministic: MayChange[Literal["auto", "on", "off"]] = "auto"
    """Use deterministic kernels, so that runs repeat bit for bit: "auto" does on the CPU, and not on GPUs."""
    track: MayChange[tuple[Tracker, ...]] = ()
    """Trackers beside metrics.jsonl."""
    law: MayChange[str | None] = None
    """A law, by file or published name, that forecasts the final loss. Its interval is in every row that has a
    validation loss, with an alarm when the run leaves it."""
    law_slack: MayChange[float] = Field(default=0.1, ge=0)
    """Nats that a run may be above the forecast before its end: what the decay of the rate still gains."""
    eval_tasks: MayChange[str | None] = None
    """lm-eval tasks to run during training, as for `loopscale eval --tasks`: their scores are in metrics.jsonl."""
    eval_every: MayChange[FromZero] = 0
    """Steps between these evaluations; 0 evaluates at the end only."""
    eval_limit: MayChange[Whole] = 100
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
            raise InputError("[run]: 'accumulate' is \"auto\", and nothing has chosen a number yet; set a number")
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


class ResourcesSection(Record):
    """The devices that a run is meant for: ``--check`` and ``--estimate`` count with them. Training uses those it
    finds."""

    gpus: Whole = NODE
    device: str = "h100"
    """The name of an accelerator, as `loopscale plan --device` has it."""
    utilisation: float = Field(default=UTILISATION, gt=0, le=1)
    """Share of the listed rates that training reaches."""


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
        return with_options(cls, data) if isinstance(data, dict) else data

    @property
    def is_code(self) -> bool:
        """Whether it names a module instead of one of loopscale's callbacks."""
        return ":" in self.use
