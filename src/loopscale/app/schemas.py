"""Requests and replies of the API, with their types and limits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

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
from loopscale.core import schemas
from loopscale.core.devices import NODE, utilisation_of
from loopscale.core.errors import InputError
from loopscale.core.schemas import Record
from loopscale.planning import FIELDS, Budget
from loopscale.planning.budget import WHOLE, BudgetField
from loopscale.planning.cluster import Cluster
from loopscale.planning.compute import device_flops, device_hours
from loopscale.planning.defaults import experts_for, recurrences_for
from loopscale.planning.plan_file import PlanFile
from loopscale.scaling import DEFAULT, MAPPINGS, OUTER_LAWS, ScalingLaw

Count = Annotated[schemas.Count, Field(lt=1e40)]
Experts = Annotated[float, Field(ge=1, le=1e6)]
Passes = Annotated[int, Field(ge=1, le=1000)]
Name = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[^\x00-\x1f/\\]+$")]


LawChoice = Annotated[
    str | dict[str, Any],
    Field(description="A published law by name, the id of a law sent to /api/laws, or the content of a law file."),
]
if TYPE_CHECKING:
    Mapping = str
    Outer = str
else:
    Mapping = Literal[tuple(MAPPINGS)]
    Outer = Literal[tuple(OUTER_LAWS)]
Counts = Literal["without-embeddings", "with-embeddings"]


def _budget_type(field: BudgetField) -> tuple[Any, Any]:
    """Return the type and the description of a budget's field in a request."""
    kind = int if field.amount is WHOLE else float
    read = schemas.Quantity(field.amount.read, field.amount.least, field.amount.most)
    value: Any = Annotated[kind, read, Field(lt=1e40)]
    optional = value | None if field.default is None else value
    return optional, Field(field.default, description=field.help)


if TYPE_CHECKING:
    BudgetFields = Record
else:
    BudgetFields = create_model(
        "BudgetFields",
        __base__=Record,
        __doc__="The limits of a plan.",
        **{name: _budget_type(field) for name, field in FIELDS.items()},
    )


class SpaceFields(BudgetFields):
    """Which designs to choose from, under which budget; an axis with one value is given."""

    rungs: list[Name] | None = Field(None, min_length=1, max_length=len(RUNGS), description="Rungs of the ladder.")
    continuous: bool = Field(False, description="All sizes from 256 to 4096 wide instead of rungs.")
    experts: list[Experts] = Field(list(RUNG_EXPERTS), min_length=1, max_length=16)
    recurrences: list[Passes] = Field(list(RUNG_RECURRENCES), min_length=1, max_length=32)

    def budget(self, real_flops: float | None = None) -> Budget:
        """Return the planner's budget; ``real_flops`` replaces the compute."""
        limits = {name: getattr(self, name) for name in FIELDS}
        return Budget(**limits if real_flops is None else {**limits, "flops": None, "real_flops": real_flops})

    def space(self, law: ScalingLaw) -> Space | None:
        """Return the design space; None where the request leaves it to the planner, which suits it to the law."""
        if not self.model_fields_set & {"rungs", "continuous", "experts", "recurrences"}:
            return None
        experts = self.experts if "experts" in self.model_fields_set else experts_for(law)
        if self.continuous:
            if self.rungs is not None:
                raise InputError("`rungs` and `continuous` both state the sizes; give one", field="rungs")
            return continuous_space(experts, self.passes(law), free=self._free())
        names = tuple(dict.fromkeys(rung_name(name) for name in self.rungs or RUNGS))
        return ladder_space(names, experts, self.passes(law), free=self._free())

    def passes(self, law: ScalingLaw) -> Sequence[int]:
        """Return the recurrences to choose from."""
        return self.recurrences if "recurrences" in self.model_fields_set else recurrences_for(law)

    def _free(self) -> list[str]:
        """Return the axes that the request leaves to the planner, which may extend them."""
        fields = {"size": "rungs", "experts": "experts", "recurrence": "recurrences"}
        return [axis for axis, name in fields.items() if name not in self.model_fields_set]


class PlanRequest(SpaceFields):
    """A plan to make."""

    law: LawChoice = DEFAULT
    eps: float | None = Field(None, ge=0, le=10, description="Minimum gain per step; without one, the law's RMSE.")
    rule: Literal["paper", "loss"] = "paper"
    extrapolate: bool = Field(False, description="Answer even more than 10x beyond what the law was fitted on.")
    allow_degenerate: bool = Field(False, description="Use a law whose fit was degenerate all the same.")
    gpus: int | None = Field(None, ge=1, le=100_000, description="Compute as a number of devices, with `days`.")
    days: float | None = Field(None, gt=0, le=1e5, description="Days that the devices train, with `gpus`.")
    device: Name | None = Field(None, description="The accelerator that training costs are given for; h100 if `gpus`.")
    utilisation: Annotated[str, Field(max_length=20)] | None = Field(None, description="Like 0.4 or 40%.")
    top: int = Field(20, ge=1, le=500, description="Ranked candidates to return.")
    config: dict[str, Any] | None = Field(
        None, description="The content of a config.json: your own model, to judge beside the designs."
    )
    design: Annotated[str, Field(max_length=80)] | None = Field(
        None,
        description="One design to describe instead of the best: RUNG:EXPERTS:RECURRENCE, or 'config' for that of "
        "config.json.",
    )

    def hours(self) -> float | None:
        """Return the device-hours, where the compute is given so."""
        stated = any(getattr(self, name) is not None for name in ("flops", "real_flops"))
        return device_hours(self.gpus, self.days, flops_stated=stated)

    def budget(self, real_flops: float | None = None) -> Budget:
        """Return the planner's budget, with the compute of the devices where they state it."""
        hours, cluster = self.hours(), self.cluster()
        if hours is not None and cluster is not None:
            real_flops = device_flops(hours, cluster.device, cluster.utilisation)
        return super().budget(real_flops)

    def cluster(self) -> Cluster | None:
        """Return the devices that train the model, where they are named; a node where their number is not."""
        if self.gpus is None and self.device is None:
            return None
        return Cluster(self.device or "h100", self.gpus or NODE, utilisation_of(self.utilisation))

    def own_space(self, law: ScalingLaw) -> Space:
        """Return the model of ``config`` as a design space: looped as often as it may be, if it has a loop."""
        from loopscale.architecture import architecture_space, from_config

        model = from_config(self.config or {}, "config.json")
        return architecture_space([model], self.passes(law) if model.loop else [1])

    def given_design(self) -> tuple[str, float, int]:
        """Return the design that is described instead of the best one."""
        from loopscale.planning.compute import parse_reference

        architecture, recurrence = parse_reference(self.design or "")
        return architecture.name, architecture.experts, recurrence


class ComputeRequest(BaseModel):
    """Training compute as devices and days, or as money."""

    model_config = ConfigDict(extra="forbid")

    device: Name = Field("h100", description="An accelerator, like h100.")
    gpus: float | None = Field(None, gt=0, le=1e7, description="How many of them.")
    days: float | None = Field(None, gt=0, le=1e5)
    utilisation: Annotated[str, Field(max_length=20)] | None = Field(None, description="Like 0.4 or 40%.")
    price: float | None = Field(None, gt=0, le=1e6, description="Dollars per GPU-hour.")
    dollars: float | None = Field(None, gt=0, le=1e13, description="Dollars in total, instead of GPUs and days.")


class ComputeReply(BaseModel):
    """Training compute, and the hours, energy and money that it takes."""

    flops: float
    hours: float
    kilowatt_hours: float
    dollars: float | None
    text: str


class PredictRequest(Record):
    """One model whose loss to predict."""

    law: LawChoice = DEFAULT
    rung: Name | None = Field(None, description="A rung of the ladder, like 1.0B.")
    width: int | None = Field(None, ge=1, le=100_000, description="Any other width by the ladder's rules.")
    experts: Experts = 1
    recurrence: Passes = 1
    tokens: Count | None = None
    unique_tokens: Count | None = Field(None, description="Different tokens among them, where they are repeated.")
    flops: Count | None = Field(None, description="Training compute instead of tokens.")
    extrapolate: bool = Field(False, description="Answer even more than 10x beyond what the law was fitted on.")
    allow_degenerate: bool = Field(False, description="Use a law whose fit was degenerate all the same.")

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


class PredictReply(BaseModel):
    """A predicted loss, and the facts of its design."""

    model_config = ConfigDict(extra="allow")

    law: str
    label: str
    loss: float
    interval: dict[str, float | str] | None
    uncertainty: str
    trust: dict[str, Any]


class FitOptions(BaseModel):
    """How to fit a sweep; what is left out follows from the data."""

    model_config = ConfigDict(extra="forbid")

    name: Name = Field("runs", description="What to call the law.")
    mapping: Mapping | None = Field(None, description="Recurrence mapping.")
    outer: Outer | None = Field(None, description="Outer law.")
    counts: Counts = Field("without-embeddings", description="What the file's parameter counts include.")
    columns: Annotated[str, Field(max_length=2000)] = Field(
        "{}", description='Columns of the file by field, as JSON: {"loss": "val_loss"}.'
    )
    loop_share: float | None = Field(
        None, gt=0, le=1, description="The share of the active parameters that loops, where no column has N_loop."
    )
    resamples: int = Field(100, ge=10, le=1000, description="Refits on resampled runs, for intervals.")
    seed: int = Field(0, ge=0, le=1_000_000)


def chosen_columns(text: str) -> dict[str, str]:
    """Return the columns that a client chose, by field, from JSON."""
    try:
        chosen = json.loads(text)
    except (ValueError, RecursionError):
        chosen = None
    if not isinstance(chosen, dict) or not all(isinstance(name, str) for name in chosen.values()):
        raise InputError("columns: send a JSON object that names a column for each field")
    return {str(field): name for field, name in chosen.items() if name}


class PreviewOptions(BaseModel):
    """How to read a sweep for its preview."""

    model_config = ConfigDict(extra="forbid")

    name: Name = "runs"
    columns: Annotated[str, Field(max_length=2000)] = "{}"


class FieldPreview(BaseModel):
    """A field of a sweep and the column that holds it."""

    name: str
    label: str
    symbol: str
    required: bool
    column: str | None
    unit: str | None = Field(description="How its numbers are read.")


class Preview(BaseModel):
    """The first rows of a sweep and how its columns are read."""

    columns: list[str]
    rows: list[list[str]]
    fields: list[FieldPreview]
    used: dict[str, str] = Field(description="Columns that a fit reads, each with the symbol of what it holds.")
    count: int
    notes: list[str]
    needs_loop_share: bool = Field(description="Whether passes vary and no column has the parameters of the loop.")
    problem: str | None = Field(description="Why the sweep cannot be fitted as it is read, in one sentence.")


class CompareRequest(Record):
    """Rows of a fitted sweep to hold out."""

    hold_out: list[Annotated[str, Field(max_length=40)]] = Field([], max_length=8, description="Like R=16 or D>400B.")
    folds: int = Field(5, ge=0, le=20, description="Cross-validation by run; 0 for none.")


class BacktestRequest(Record):
    """How much of a fitted sweep to hide and predict."""

    decades: float = Field(1.0, gt=0, le=10, description="The top decades of training compute to hide.")


class NextRequest(Record):
    """Runs to add to a fitted sweep, to reduce the uncertainty of a plan."""

    budget: Count = Field(description="FLOPs for new runs.")
    plan: PlanRequest = Field(description="The plan whose uncertainty to reduce; its law is the fitted one.")
    goal: Literal["choice", "predictions"] = "choice"
    most: int = Field(20, ge=1, le=200, description="The most runs to choose.")
    device: Name = Field("h100", description="The accelerator that costs are given for.")
    utilisation: Annotated[str, Field(max_length=20)] | None = Field(None, description="Like 0.4 or 40%.")
    price: float | None = Field(None, gt=0, le=1e6, description="Dollars per GPU-hour.")


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
    about: str = Field(description="Source, form, RMSE and uncertainty, in a few sentences.")


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
    devices: list[str]
    utilisation: str
    budget: list[dict[str, Any]] = Field(description="The fields of a budget, with what a control for each needs.")
    presets: list[dict[str, Any]]
    sweep: str | None = Field(description="The name of the live sweep, if one is shown.")
    run: str | None = Field(description="The name of the live run, if one is shown.")
    upload_bytes: int
    rows: int


class PlanDocument(PlanFile):  # type: ignore[misc] # made from the plan's own fields
    """A plan, as ``loopscale plan --json`` prints it."""

    kind: Literal["plan"]
    schema_: int = Field(alias="schema")


class PlanReply(BaseModel):
    """A plan and what the page shows of it."""

    plan: PlanDocument
    sentences: dict[str, str] = Field(description="The plan in sentences, by subject.")
    trust: dict[str, Any] = Field(description="The level of trust, a description of it, and the reasons.")
    limits: list[dict[str, Any]] = Field(
        description="The limits that determine the loss, and what looser ones would gain."
    )
    memory: dict[str, float | None] = Field(description="Bytes of weights, embeddings and KV cache, and the limit.")
    copied: dict[str, str] = Field(alias="copy", description="The plan as a command, as Python, as a training file.")
    own: dict[str, Any] | None = Field(description="Your own model (config.json) under the same budget.")
    verdict: str = Field(description="What the search says of the design: chosen, or why not.")


class SweepReply(BaseModel):
    """A sweep while it runs."""

    progress: dict[str, float | int | None]
    text: str
    runs: list[dict[str, Any]]
    points: Columns
    law: str
    enough: bool = Field(description="Whether there are losses enough for a fit.")
    widths: dict[str, float | None] = Field(
        description="For each law asked for, the median width of its 90% interval at the points so far, in ln loss."
    )


class RunForecast(BaseModel):
    """The loss with which a run will end, by its log so far."""

    final: float
    low: float
    high: float
    level: float
    text: str = Field(description="The forecast and what it rests on, in a few lines.")


class RunAlarm(BaseModel):
    """A step at which the run left the forecast of its law."""

    step: int
    text: str


class RunReply(BaseModel):
    """A training run, read from its folder while it trains."""

    name: str
    state: Literal["training", "stopped", "finished"] = Field(
        description="Stopped: no process of this machine trains in the folder, and the run is not at its end."
    )
    step: int
    steps: int
    step_tokens: int = Field(description="Tokens of one step.")
    tokens_per_second: float | None = Field(description="Median of the last rows.")
    seconds_left: float | None = Field(description="The rest of the steps at that speed.")
    columns: Columns = Field(
        description="Rows of metrics, about a thousand at most: step, tokens, loss, validation_loss (null where none "
        "was measured), learning_rate and tokens_per_second."
    )
    forecast: RunForecast | None = Field(description="By the log so far; null while it is too short, and at the end.")
    law: dict[str, float] | None = Field(description="What the law of [run] law forecasts: loss, low and high.")
    alarms: list[RunAlarm] = Field(description="The last steps at which the run left that forecast.")
    validation_loss: float | None = Field(description="Of the finished run.")
    text: str = Field(description="The state of the run, in one sentence.")


class JobReply(BaseModel):
    """Work that continues after the reply: ask for its state with its id."""

    id: str
    kind: Literal["fit", "comparison", "design", "backtest"]
    state: Literal["waiting", "running", "done", "failed", "cancelled"]
    stage: str = Field(description="The current stage, in a few words.")
    done: int
    total: int
    error: str | None = Field(description="Why it failed, in one sentence.")
    result: dict[str, Any] | None = Field(description="The result, once it is done.")
