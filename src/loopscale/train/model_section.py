"""The model of a run: a rung of the ladder, or sizes of one's own, and any option of the model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, get_type_hints

from loopscale.architecture.ladder import rung
from loopscale.errors import InputError, nearest, shown
from loopscale.files import Fields

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
