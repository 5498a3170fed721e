"""What clients may ask, typed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from loopscale.architecture import (
    RUNG_EXPERTS,
    RUNG_RECURRENCES,
    RUNGS,
    Architecture,
    Space,
    at_width,
    continuous_space,
    ladder_space,
    rung,
    rung_name,
)
from loopscale.errors import InputError
from loopscale.laws import DEFAULT, MAPPINGS, OUTER_LAWS
from loopscale.plan import Budget, Candidate
from loopscale.plan.files import TrustRecord
from loopscale.quantities import parse_bits, parse_bytes, parse_count


def _quantity(parse: Callable[[str, str], float], like: str) -> Any:
    """Return the type of a positive number that may also be written as text, like ``like``."""

    def read(value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return parse(value, "§")
        except InputError as error:
            raise ValueError(str(error).removeprefix("§: ")) from None

    schema = {
        "anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "maxLength": 40}],
        "example": like,
    }
    return Annotated[float, Field(gt=0, lt=1e40), BeforeValidator(read), WithJsonSchema(schema)]


if TYPE_CHECKING:
    Count: TypeAlias = float
    Bytes: TypeAlias = float
    Bits: TypeAlias = float
else:
    Count = _quantity(parse_count, "5e21")
    Bytes = _quantity(parse_bytes, "3GB")
    Bits = _quantity(parse_bits, "int4")
Whole = Annotated[int, Field(ge=1, le=10_000_000)]
Experts = Annotated[float, Field(ge=1, le=1e6)]
Passes = Annotated[int, Field(ge=1, le=1000)]
Name = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[^\x00-\x1f/\\]+$")]


class Strict(BaseModel):
    """A request: unknown fields are refused, and a number is a number."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


LawChoice = Annotated[
    str | dict[str, Any],
    Field(description="A published law by name, the id of a law sent to /api/laws, or the content of a law file."),
]
Chart = Literal["recurrence", "size", "experts", "best-recurrence", "best-experts", "designs", "compute"]
if TYPE_CHECKING:
    Mapping = str
    Outer = str
else:
    Mapping = Literal[tuple(MAPPINGS)]
    Outer = Literal[tuple(OUTER_LAWS)]
Counts = Literal["without-embeddings", "with-embeddings"]


class BudgetFields(Strict):
    """What there is to spend."""

    flops: Count | None = Field(None, description="Training compute, like 5e21.")
    tokens: Count | None = Field(None, description="Training tokens, when they are given.")
    max_tokens: Count | None = Field(None, description="The most tokens there are to train on.")
    memory: Bytes | None = Field(None, description="Bytes for weights, and for the KV cache with context.")
    bits: Bits = Field(16.0, description="Bits per weight.")
    context: Whole | None = Field(None, description="Context length whose KV cache counts as memory.")
    batch: Whole = 1
    kv_bits: Bits = 16.0
    kept_passes: Whole | None = Field(None, description="Passes that keep a KV cache of their own.")
    inference_flops: Count | None = Field(None, description="The most FLOPs a generated token may cost.")
    serve_tokens: Count | None = Field(None, description="Tokens served over the model's life.")

    def budget(self) -> Budget:
        """Return the planner's budget."""
        given = {name: getattr(self, name) for name in BudgetFields.model_fields}
        return Budget(**given | {"serve_tokens": self.serve_tokens or 0.0})


class SpaceFields(BudgetFields):
    """Which designs to choose from, under which budget; an axis with one value is given."""

    rungs: list[Name] | None = Field(None, min_length=1, max_length=len(RUNGS), description="Rungs of the ladder.")
    continuous: bool = Field(False, description="All sizes from 256 to 4096 wide instead of rungs.")
    experts: list[Experts] = Field(list(RUNG_EXPERTS), min_length=1, max_length=16)
    recurrences: list[Passes] = Field(list(RUNG_RECURRENCES), min_length=1, max_length=32)

    def space(self) -> Space:
        """Return the planner's design space."""
        if self.continuous:
            if self.rungs is not None:
                raise InputError("rungs and continuous both state the sizes; give one")
            return continuous_space(self.experts, self.recurrences, free=self._free())
        names = tuple(dict.fromkeys(rung_name(name) for name in self.rungs or RUNGS))
        return ladder_space(names, self.experts, self.recurrences, free=self._free())

    def _free(self) -> list[str]:
        """Return the axes that the request leaves to the planner, which may extend them."""
        fields = {"size": "rungs", "experts": "experts", "recurrence": "recurrences"}
        return [axis for axis, name in fields.items() if name not in self.model_fields_set]


class PlanRequest(SpaceFields):
    """A plan to make."""

    law: LawChoice = DEFAULT
    eps: float | None = Field(None, ge=0, le=10, description="Least gain that justifies a step; else the law's RMSE.")
    rule: Literal["paper", "loss"] = "paper"
    extrapolate: bool = Field(False, description="Answer even more than 10x beyond what the law was fitted on.")
    allow_degenerate: bool = Field(False, description="Use a law whose fit was degenerate all the same.")
    top: int = Field(20, ge=1, le=500, description="Ranked candidates to return.")
    charts: list[Chart] = Field([], max_length=7, description="Tables for charts to return with the plan.")


class PredictRequest(Strict):
    """One model whose loss to predict."""

    law: LawChoice = DEFAULT
    rung: Name | None = Field(None, description="A rung of the ladder, like 1.0B.")
    width: int | None = Field(None, ge=1, le=100_000, description="Any other width by the ladder's rules.")
    experts: Experts = 1
    recurrence: Passes = 1
    tokens: Count | None = None
    flops: Count | None = Field(None, description="Training compute instead of tokens.")
    extrapolate: bool = Field(False, description="Answer even more than 10x beyond what the law was fitted on.")

    def model(self) -> Architecture:
        """Return the model."""
        if (self.rung is None) == (self.width is None):
            raise InputError("give a rung or a width, one of them")
        if self.rung is not None:
            return rung(self.rung, self.experts)
        assert self.width is not None
        return at_width(self.width, experts=self.experts)

    def training_tokens(self, model: Architecture) -> float:
        """Return the tokens, from the compute where that is given."""
        if (self.tokens is None) == (self.flops is None):
            raise InputError("give tokens or flops, one of them")
        if self.tokens is not None:
            return float(self.tokens)
        assert self.flops is not None
        return float(self.flops / model.train_flops_per_token(self.recurrence))


class FitOptions(BaseModel):
    """How to fit a sweep; what is left out follows from the data."""

    model_config = ConfigDict(extra="forbid")

    name: Name = Field("runs", description="What to call the law.")
    mapping: Mapping | None = Field(None, description="Recurrence mapping.")
    outer: Outer | None = Field(None, description="Outer law.")
    counts: Counts = Field("without-embeddings", description="What the file's parameter counts include.")
    resamples: int = Field(100, ge=10, le=1000, description="Refits on resampled runs, for intervals.")
    seed: int = Field(0, ge=0, le=1_000_000)


class CompareRequest(Strict):
    """Rows of a fitted sweep to predict unseen."""

    hold_out: list[Annotated[str, Field(max_length=40)]] = Field([], max_length=8, description="Like R=16 or D>400B.")
    folds: int = Field(5, ge=0, le=20, description="Cross-validation by run; 0 for none.")


class NextRequest(Strict):
    """Which runs to add to a fitted sweep, to be surer of a plan."""

    budget: Count = Field(description="FLOPs for new runs.")
    plan: PlanRequest = Field(description="The plan to make sure of; its law is the fitted one.")
    goal: Literal["choice", "predictions"] = "choice"
    most: int = Field(20, ge=1, le=200, description="The most runs to choose.")


Columns = dict[str, list[float | int | str | bool | None]]


class LawSummary(BaseModel):
    """A law without its resamples."""

    id: str = Field(description="What plans call it by.")
    name: str
    form: str
    source: str
    note: str
    outer: str
    mapping: str
    coefficients: dict[str, float]
    units: dict[str, float]
    counts: str
    rmse: float | None
    range: dict[str, list[float | None]]
    resamples: int = Field(description="How many resampled laws it carries.")


class Laws(BaseModel):
    """The published laws."""

    default: str
    laws: list[LawSummary]


class Choices(BaseModel):
    """What requests may choose from, and their limits."""

    version: str
    rungs: list[str]
    experts: list[float]
    recurrences: list[int]
    mappings: list[str]
    outer_laws: list[str]
    upload_bytes: int
    rows: int


class Vote(BaseModel):
    """How many resampled laws choose a design."""

    design: str
    share: float


class Plan(BaseModel):
    """A plan, as ``loopscale plan --json`` prints it."""

    kind: Literal["plan"]
    schema_: int = Field(alias="schema")
    law: str
    rule: str
    eps: float
    budget: dict[str, float | None]
    choice: Candidate
    lead: float | None
    agreement: float | None
    votes: list[Vote]
    rivals: list[Candidate]
    candidates: list[Candidate]
    candidates_in_all: int
    pareto: dict[str, list[dict[str, float | str | None]]]
    interval: dict[str, float | str] | None = Field(description="90% interval of the loss, and what it rests on.")
    trust: TrustRecord | None = Field(description="How far the prediction can be trusted, and why.")
    edge: list[dict[str, Any]] = Field(description="Axes on which the choice is the last value searched.")
    binding: list[str] = Field(description="Limits of which twice as much would lower the loss.")
    sensitivities: list[dict[str, float | str]] = Field(description="What twice as much of each limit buys.")
    next_best: dict[str, float | str] | None = Field(description="The nearest better design and what it needs.")
    unspent_flops: float
    sentences: dict[str, str] = Field(description="The plan in sentences, as `loopscale plan` prints them.")


class Words(BaseModel):
    """The plan in sentences, as ``loopscale plan`` prints them."""

    answer: str
    costs: str
    confidence: str
    certainty: str
    trust: str
    prices: str
    edge: str
    legend: str


class PlanReply(BaseModel):
    """A plan with its words and the charts that were asked for."""

    plan: Plan
    words: Words
    charts: dict[str, Columns]


class Job(BaseModel):
    """Work that goes on after the answer: ask again with its id."""

    id: str
    kind: Literal["fit", "comparison", "design"]
    state: Literal["waiting", "running", "done", "failed", "cancelled"]
    stage: str = Field(description="What it does now, in a few words.")
    done: int
    total: int
    error: str | None = Field(description="Why it failed, in one sentence.")
    result: dict[str, Any] | None = Field(description="What it found, once it is done.")
