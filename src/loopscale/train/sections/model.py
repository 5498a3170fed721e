"""``[model]``: sizes and options of the model."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from loopscale.architecture import rung
from loopscale.core.errors import InputError, nearest, shown
from loopscale.core.schemas import FromZero, Record, Whole
from loopscale.train.sections import with_options

if TYPE_CHECKING:
    from loopscale.model import LoopedMoEConfig


def config_fields() -> list[str]:
    """Return the fields of ``LoopedMoEConfig`` that a training file may set."""
    from loopscale.model import LoopedMoEConfig

    return [name for name in LoopedMoEConfig.__annotations__ if name not in ("model_type", "format_version")]


class ModelSection(Record):
    """Sizes of the model; any other field of ``LoopedMoEConfig`` may be set here too and overrides them."""

    init_from: str | None = None
    """Start from the weights of a model: the folder of a run or of its model, or what `loopscale convert` wrote. Sizes,
    options and tokenizer are that model's. ``experts`` may be a multiple of its experts, ``recurrence`` any number."""
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
        rest = [key for key in data if key not in cls.model_fields]
        if rest:
            fields = [*cls.model_fields, *config_fields()]
            for key in rest:
                if key not in fields:
                    raise ValueError(f"unknown field {shown(key)}{nearest(str(key), fields)}")
        return with_options(cls, data)

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
            raise InputError(
                f"field 'width' is {self.width}, no multiple of head_size {self.head_size}; change one of them"
            )
        loop_layers = self.layers - 2 * self.edge_layers
        if loop_layers < 1:
            raise InputError(
                f"field 'layers' is {self.layers}, which leaves no loop block between prelude and coda of "
                f"{self.edge_layers} each; give {2 * self.edge_layers + 1} or more"
            )
        if 4 * self.width % self.active_experts:
            raise InputError(
                f"field 'active_experts' is {self.active_experts}, which does not divide the feed-forward width "
                f"{4 * self.width}; give a divisor of it"
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
