"""``[optimizer]`` and ``[schedule]``: how the weights are updated over a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from loopscale.core.schemas import FromZero, Record, Whole

Share = Annotated[float, Field(ge=0, le=1)]


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
