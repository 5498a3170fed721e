"""The form of golden files and of engines' reports, which other programs write."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from loopscale.core.schemas import File, Record

KIND, VERSION = "conformance", 1
Index = Annotated[int, Field(ge=0, le=2**31)]


class _Entry(Record):
    """A part of a report; engines may add fields."""

    model_config = ConfigDict(extra="allow")


class _PassLogits(_Entry):
    """The likeliest tokens of one pass."""

    ids: list[Index] = Field(min_length=1)
    values: list[float]
    """Their logits."""

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if len(self.ids) != len(self.values):
            raise ValueError(f"{len(self.ids)} ids have {len(self.values)} values")
        return self


class _Layer(_Entry):
    """A layer that runs: in the loop once for each pass."""

    part: str
    """ "prelude", "loop" or "coda"."""
    pass_index: int | None = Field(alias="pass")
    """From 1; null outside the loop."""
    layer: Index


class _Slot(_Layer):
    """A cache slot: the newest position in the first head."""

    keys: list[float]
    values: list[float]


class _Experts(_Layer):
    """The experts that a layer chooses for the last token."""

    ids: list[Index]


class _Exit(_Entry):
    """The passes that early exit takes for the last token."""

    passes: Index


class _Run(_Entry):
    """What was observed of one prompt at one recurrence; an engine may leave out what it does not tell."""

    prompt: Index
    recurrence: Annotated[int, Field(ge=1, le=10_000)]
    logits: list[_PassLogits | None] = Field(default_factory=list)
    """By pass."""
    slots: list[_Slot] = Field(default_factory=list)
    experts: list[_Experts] = Field(default_factory=list)
    exits: list[_Exit] = Field(default_factory=list)
    tokens: list[Index] = Field(default_factory=list)
    """Greedy tokens after the prompt."""
    margins: list[float] = Field(default_factory=list)
    """By how much each led the second."""


class ConformanceFile(File):
    """What a looped model computes of some prompts, pass by pass: a golden file, or an engine's report."""

    KIND, VERSION = KIND, VERSION
    model_config = ConfigDict(extra="allow")

    prompts: list[list[Index]]
    """Token ids."""
    runs: list[_Run]

    @model_validator(mode="after")
    def _known_prompts(self) -> Self:
        if any(run.prompt >= len(self.prompts) for run in self.runs):
            raise ValueError(f"a run names a prompt beyond the {len(self.prompts)} of the file")
        return self
