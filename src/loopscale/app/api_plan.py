"""Laws, predictions and plans: answered at once."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body
from fastapi import Path as PathParameter
from starlette.responses import JSONResponse, Response

from loopscale import __version__
from loopscale.app.charts import chart_tables
from loopscale.app.jobs import LawStore, summary
from loopscale.app.problems import documented
from loopscale.app.schemas import Choices, Laws, LawSummary, PlanReply, PlanRequest, PredictRequest
from loopscale.app.security import Limits
from loopscale.architecture import RUNG_EXPERTS, RUNG_RECURRENCES, RUNGS
from loopscale.errors import InputError
from loopscale.files import finite
from loopscale.laws import DEFAULT, MAPPINGS, OUTER_LAWS, PUBLISHED, ScalingLaw
from loopscale.plan import Plan, Prediction, Space, plan, predict
from loopscale.plan.text import sentences

LawName = Annotated[str, PathParameter(max_length=80)]


def plan_routes(laws: LawStore, limits: Limits) -> APIRouter:
    """Return the routes that compute at once."""
    api = APIRouter(prefix="/api", tags=["plan"])

    @api.get("/choices", response_model=Choices, responses=documented())
    def get_choices() -> JSONResponse:
        """Return what requests may choose from."""
        return JSONResponse(_choices(limits))

    @api.get("/laws", response_model=Laws, responses=documented())
    def list_laws() -> JSONResponse:
        """List the published laws."""
        return JSONResponse({"default": DEFAULT, "laws": [summary(name, law) for name, law in PUBLISHED.items()]})

    @api.post("/laws", response_model=LawSummary, responses=documented(422))
    def add_law(law: Annotated[dict[str, Any], Body(description="The content of a law file.")]) -> JSONResponse:
        """Check a law of one's own, and keep it for plans to name by its id."""
        read = laws.read(law)
        return JSONResponse(summary(laws.add(read), read))

    @api.get("/laws/{name}", responses=documented(404, 422))
    def get_law(name: LawName) -> dict[str, Any]:
        """Return a law file: a published law, or one that was sent."""
        return laws.find(name).to_dict()

    @api.post("/predict", response_model=Prediction, responses=documented(404, 422))
    def predict_loss(asked: PredictRequest) -> JSONResponse:
        """Predict the loss of one model."""
        model = asked.model()
        found = predict(
            model, asked.training_tokens(model), asked.recurrence, laws.find(asked.law), extrapolate=asked.extrapolate
        )
        return JSONResponse(finite(found.to_dict()))

    @api.post("/plan", response_model=PlanReply, responses=documented(404, 422))
    def make_a_plan(asked: PlanRequest) -> JSONResponse:
        """Choose the model to train under a budget; the charts asked for come with it."""
        found = make_plan(asked, laws.find(asked.law), limits)
        return JSONResponse(
            finite(
                {
                    "plan": found.to_dict(asked.top),
                    "words": _words(found),
                    "charts": chart_tables(found, asked.charts),
                }
            )
        )

    @api.post(
        "/plan.csv", response_class=Response, responses={**documented(404, 422), 200: {"content": {"text/csv": {}}}}
    )
    def plan_csv(asked: PlanRequest) -> Response:
        """Return the ranked candidates of a plan as CSV, as many as `top` says."""
        found = make_plan(asked, laws.find(asked.law), limits)
        return Response(found.table(asked.top).csv(), media_type="text/csv")

    return api


def make_plan(asked: PlanRequest, law: ScalingLaw, limits: Limits) -> Plan:
    """Return the plan, unless its space is larger than one client may have."""
    space = asked.space()
    _check_size(space, law, limits)
    return plan(
        asked.budget(),
        space,
        law,
        eps=asked.eps,
        rule=asked.rule,
        extrapolate=asked.extrapolate,
        allow_degenerate=asked.allow_degenerate,
    )


def _check_size(space: Space, law: ScalingLaw, limits: Limits) -> None:
    count = 1
    for length in space.shape:
        count *= length
    count *= 1 + (0 if law.resamples is None else len(law.resamples))
    if count > limits.evaluations:
        raise InputError(
            f"the design space is too large: {count:,} losses; at most {limits.evaluations:,} are computed here, "
            "so give fewer sizes, experts or passes"
        )


def _words(found: Plan) -> dict[str, str]:
    said = sentences(found)
    return {**said, "certainty": said["confidence"]}


def _choices(limits: Limits) -> dict[str, Any]:
    return {
        "version": __version__,
        "rungs": list(RUNGS),
        "experts": list(RUNG_EXPERTS),
        "recurrences": list(RUNG_RECURRENCES),
        "mappings": list(MAPPINGS),
        "outer_laws": list(OUTER_LAWS),
        "upload_bytes": limits.upload,
        "rows": limits.rows,
    }
