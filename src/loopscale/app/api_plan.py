"""Routes of the API that answer at once: laws, predictions, plans and compute budgets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from fastapi import Path as PathParameter
from starlette.responses import JSONResponse, Response

from loopscale import __version__
from loopscale.app.law_store import LawStore, summary
from loopscale.app.page_data import preset
from loopscale.app.plan_reply import MEETS, copied_texts, own_model, plan_reply
from loopscale.app.problems import documented
from loopscale.app.schemas import (
    Choices,
    ComputeReply,
    ComputeRequest,
    Laws,
    LawSummary,
    PlanReply,
    PlanRequest,
    PredictReply,
    PredictRequest,
)
from loopscale.app.security import Limits
from loopscale.architecture import RUNG_EXPERTS, RUNG_RECURRENCES, RUNGS, Space, ladder_space, size_space
from loopscale.core.devices import DEVICES, UTILISATION, utilisation_of
from loopscale.core.errors import InputError
from loopscale.core.files import finite
from loopscale.core.quantities import format_count
from loopscale.planning import FIELDS, PRESETS, Budget, Plan, Search, evaluate, search
from loopscale.planning.compute import device_flops, training_cost
from loopscale.planning.design import design_at
from loopscale.planning.device_search import search_on
from loopscale.planning.predictions import predict
from loopscale.scaling import DEFAULT, MAPPINGS, OUTER_LAWS, PUBLISHED, ScalingLaw

LawName = Annotated[str, PathParameter(max_length=80)]


def plan_routes(laws: LawStore, limits: Limits, sweep: str | None = None, run: str | None = None) -> APIRouter:
    """Return the routes that compute at once; ``sweep`` and ``run`` name what is shown live."""
    api = APIRouter(prefix="/api", tags=["plan"])

    @api.get("/choices", response_model=Choices, responses=documented())
    def get_choices() -> JSONResponse:
        """Return the values that requests may choose from."""
        return JSONResponse(_choices(limits, sweep, run))

    @api.get("/laws", response_model=Laws, responses=documented())
    def list_laws() -> JSONResponse:
        """List the published laws."""
        return JSONResponse({"default": DEFAULT, "laws": [summary(name, laws.find(name)) for name in PUBLISHED]})

    @api.post("/laws", response_model=LawSummary, responses=documented(422))
    def add_law(law: Annotated[dict[str, Any], Body(description="The content of a law file.")]) -> JSONResponse:
        """Check a law and keep it, so that plans can name it by its id."""
        read = laws.read(law)
        return JSONResponse(summary(laws.add(read), read))

    @api.get("/laws/{name}", responses=documented(404, 422))
    def get_law(name: LawName) -> dict[str, Any]:
        """Return the content of a law file: a published law, or one that was sent."""
        return laws.find(name).to_dict()

    @api.get("/compute", response_model=ComputeReply, responses=documented(422))
    def get_compute(request: Annotated[ComputeRequest, Query()]) -> JSONResponse:
        """Return the training compute of devices over days, or of an amount of money."""
        return JSONResponse(compute_reply(request))

    @api.post("/predict", response_model=PredictReply, responses=documented(404, 422))
    def predict_loss(request: PredictRequest) -> JSONResponse:
        """Predict the loss of one model."""
        model = request.model()
        prediction = predict(
            model,
            request.training_tokens(model),
            request.recurrence,
            laws.find(request.law),
            unique_tokens=request.unique_tokens,
            extrapolate=request.extrapolate,
            allow_degenerate=request.allow_degenerate,
        )
        return JSONResponse(finite(prediction.to_dict()))

    @api.post("/plan", response_model=PlanReply, responses=documented(404, 422))
    def plan_json(request: PlanRequest) -> JSONResponse:
        """Choose the model to train under a budget."""
        law = laws.find(request.law)
        if request.design is not None:
            found, verdict = _given(request, law, limits)
            return JSONResponse(finite(plan_reply(found, request, verdict)))
        found = make_search(request, law, limits)
        own = None
        if request.config is not None:
            own = own_model(found, *_own(request, law, found.budget), request.extrapolate)
        return JSONResponse(finite(plan_reply(found, request, own=own)))

    @api.post(
        "/plan.csv", response_class=Response, responses={**documented(404, 422), 200: {"content": {"text/csv": {}}}}
    )
    def plan_csv(request: PlanRequest) -> Response:
        """Return the ranked candidates of a plan as CSV, the first ``top``."""
        found = make_search(request, laws.find(request.law), limits)
        return Response(found.table(request.top).csv(), media_type="text/csv")

    @api.post(
        "/plan.html", response_class=Response, responses={**documented(404, 422), 200: {"content": {"text/html": {}}}}
    )
    def plan_html(request: PlanRequest) -> Response:
        """Return the report of a plan, one self-contained page."""
        from loopscale.figures.reports import plan_report  # imports matplotlib, which the first page does not need

        law = laws.find(request.law)
        found = make_search(request, law, limits)
        report = plan_report(Plan.of(found), law, command=copied_texts(found, request)["command"])
        # Shown by this server, it might load nothing but its own styles; it is meant to be saved.
        return Response(
            report.html(), media_type="text/html", headers={"content-disposition": "attachment; filename=plan.html"}
        )

    return api


def make_search(request: PlanRequest, law: ScalingLaw, limits: Limits) -> Search:
    """Return the search that a request asks for; refuse a space that is too large."""
    space = request.space(law)
    if space is not None:
        _check_size(space, law, limits)

    choose = _searcher(request, law, extrapolate=request.extrapolate, allow_degenerate=request.allow_degenerate)
    return choose(request.budget(), space)


def _given(request: PlanRequest, law: ScalingLaw, limits: Limits) -> tuple[Search, str]:
    """Return the search over one given design, even if a limit rules it out, and its verdict among all designs."""
    if request.config is not None and request.design in (None, "config"):
        return _own(request, law, request.budget())
    allowed = request.model_copy(update={"design": None, "extrapolate": True, "allow_degenerate": True})
    everything = make_search(allowed, law, limits)
    one = _searcher(request, law)(everything.budget.lifted(), _one_design(request, everything.grid.space))
    verdicts = {row.label: row.verdict for row in everything.candidates()}
    return one, verdicts.get(one.choice.label, "not in the search space")


def _one_design(request: PlanRequest, searched: Space) -> Space:
    """Return the given design alone: a rung of the ladder, or a size that was searched for a dense law."""
    size = (request.design or "").partition(":")[0]
    if searched.kind == "sizes" and size in searched.names:
        return size_space([searched.active[searched.names.index(size), 0]])
    rung, experts, recurrence = request.given_design()
    return ladder_space([rung], [experts], [recurrence])


def _own(request: PlanRequest, law: ScalingLaw, budget: Budget) -> tuple[Search, str]:
    """Return the best form of the user's model, within the limits if it has one, and which limit it misses."""
    space, choose = request.own_space(law), _searcher(request, law)
    try:
        return choose(budget, space), MEETS
    except InputError:
        one = choose(budget.lifted(), space)
    limited = evaluate(one.law, space, budget, eps=one.grid.eps, rule=one.grid.rule, resamples=False)
    return one, design_at(limited, one.chosen, -1).verdict


def _searcher(
    request: PlanRequest, law: ScalingLaw, *, extrapolate: bool = True, allow_degenerate: bool = True
) -> Callable[[Budget, Space | None], Search]:
    """Return the search among designs; those for devices are judged by what they take on them."""
    cluster = None if request.hours() is None else request.cluster()
    made: Callable[..., Search] = search if cluster is None else partial(search_on, cluster)
    return partial(
        made, law=law, eps=request.eps, rule=request.rule, extrapolate=extrapolate, allow_degenerate=allow_degenerate
    )


def _check_size(space: Space, law: ScalingLaw, limits: Limits) -> None:
    count = prod(space.shape) * (1 + (0 if law.resamples is None else len(law.resamples)))
    if count > limits.evaluations:
        raise InputError(
            f"the design space is too large: {count:,} losses; at most {limits.evaluations:,} are computed here, "
            "so give fewer sizes, experts or passes"
        )


def compute_reply(request: ComputeRequest) -> dict[str, Any]:
    """Return the training compute that devices reach over days or for money, and what it costs, in a sentence."""
    utilisation = utilisation_of(request.utilisation)
    if request.dollars is not None:
        if request.price is None:
            raise InputError("give dollars per GPU-hour together with the dollars in total", field="price")
        hours = request.dollars / request.price
    elif request.gpus is None or request.days is None:
        raise InputError("give GPUs and days, or dollars in total and per GPU-hour", field="gpus")
    else:
        hours = request.gpus * request.days * 24
    flops = device_flops(hours, request.device, utilisation)
    cost = training_cost(flops, request.device, 1, utilisation, request.price)
    money = "" if cost.dollars is None else f", ${cost.dollars:,.0f}"
    text = (
        f"{format_count(hours)} hours on {request.device} at {utilisation:.0%} of its peak: {flops:.3g} real FLOPs, "
        f"{format_count(cost.kilowatt_hours)} kWh (devices alone, without hosts and cooling){money}."
    )
    energy = cost.kilowatt_hours
    return {"flops": flops, "hours": hours, "kilowatt_hours": energy, "dollars": cost.dollars, "text": text}


def _choices(limits: Limits, sweep: str | None, run: str | None) -> dict[str, Any]:
    return {
        "version": __version__,
        "rungs": list(RUNGS),
        "experts": list(RUNG_EXPERTS),
        "recurrences": list(RUNG_RECURRENCES),
        "mappings": list(MAPPINGS),
        "outer_laws": list(OUTER_LAWS),
        "devices": list(DEVICES),
        "utilisation": f"{UTILISATION:.0%}",
        "budget": [field.to_dict() for field in FIELDS.values()],
        "presets": [preset(name, values) for name, values in PRESETS.items()],
        "sweep": sweep,
        "run": run,
        "upload_bytes": limits.upload,
        "rows": limits.rows,
    }
