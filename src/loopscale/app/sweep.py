"""A live sweep: the progress and losses of a sweep's folder, read while its workers run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query
from starlette.responses import JSONResponse, Response

from loopscale.app.law_store import LawStore
from loopscale.app.problems import RefusalError, documented
from loopscale.app.schemas import SweepReply
from loopscale.core.errors import InputError
from loopscale.core.files import finite
from loopscale.core.quantities import counted, format_duration
from loopscale.core.tables import Table
from loopscale.scaling import Points, ScalingLaw, costs

MOST_LAWS = 60
"""Laws whose uncertainty one reading compares."""
ENOUGH = 8
"""Losses from which a fit can say anything about a sweep."""


class LiveSweep:
    """The folder of a sweep; each reading opens its store anew."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder if folder.is_dir() else folder.parent
        if not self.folder.is_dir():
            raise InputError(f"{folder}: no such folder; give the folder of a sweep's results")
        with self._store():
            self.name = self.folder.resolve().name

    def read(self, laws: Mapping[str, ScalingLaw] | None = None) -> dict[str, Any]:
        """Return the progress, the runs and all losses so far; and how uncertain ``laws`` are at these points."""
        from loopscale.sweep.progress import progress, share_done

        with self._store() as store:
            runs, rows = store.runs(), list(store.observations())
        now = progress(runs)
        latest = {key: loss for key, _, loss, _ in rows}
        count = f"{now.observations} of {now.wanted} losses; {counted(now.done, 'run')} done"
        left = "" if not now.seconds_left else f"; about {format_duration(now.seconds_left)} left"
        failed = f", {now.failed} failed" if now.failed else ""
        table = self._table(rows)
        return {
            "progress": asdict(now),
            "text": f"{count}, {now.running} running, {now.waiting} waiting{failed}{left}.",
            "runs": [
                {
                    "key": run.key,
                    "state": "worker lost; will be retried" if run.stale else run.state,
                    "share": share_done(run),
                    "points": f"{len(run.done & set(run.points))} of {len(run.points)}",
                    "loss": latest.get(run.key),
                    "error": run.error,
                }
                for run in runs
            ],
            "points": dict(table.columns),
            "law": _advice(len(table)),
            "enough": len(table) >= ENOUGH,
            "widths": {name: _width(law, table) for name, law in (laws or {}).items()},
        }

    def csv(self) -> str:
        """Return the losses so far as CSV that a fit reads."""
        with self._store() as store:
            table = self._table(list(store.observations()))
        if not len(table):
            raise InputError(f"sweep {self.name}: no point is finished yet")
        kept = {name: column for name, column in table.columns.items() if name != "flops"}
        return Table({**kept, "finished": [True] * len(table)}).csv()  # every D ends with its own schedule

    def _table(self, rows: list[tuple[str, int, float, dict[str, Any]]]) -> Table:
        names = {"active": "size", "loop": "N_loop", "total": "N_total", "experts": "experts"}
        facts = [row[3] for row in rows]
        columns: dict[str, Any] = {"run": [row[0] for row in rows]}
        columns |= {shown: [fact[name] for fact in facts] for name, shown in names.items()}
        columns |= {name: [fact[name] for fact in facts] for name in ("recurrence", "tokens")}
        unrolled = costs.unrolled(*(np.array(columns[name], float) for name in ("size", "N_loop", "recurrence")))
        columns["flops"] = np.asarray(costs.train_flops(unrolled, np.array(columns["tokens"], float))).tolist()
        columns["loss"] = [row[2] for row in rows]
        return Table(columns)

    def _store(self) -> Any:
        from loopscale.sweep.store import Store

        return Store(self.folder)


def _width(law: ScalingLaw, table: Table) -> float | None:
    """Return the median width of the law's 90% interval at all points so far, in ln loss."""
    if law.resamples is None or not len(table):
        return None
    names = ("size", "tokens", "recurrence", "experts", "N_loop", "N_total")
    low, high = law.interval(Points(*(np.array(table.columns[name], float) for name in names)), 0.9)
    return float(np.median(np.log(high / low)))


def _advice(count: int) -> str:
    if count < ENOUGH:
        return f"A law needs at least {ENOUGH} losses; there are {count}."
    return "The law is refitted as runs finish."


def sweep_routes(live: LiveSweep | None, laws: LawStore) -> APIRouter:
    """Return the routes of the live sweep; without one they answer 404."""
    api = APIRouter(prefix="/api", tags=["sweep"])

    def shown() -> LiveSweep:
        if live is None:
            raise RefusalError(404, "no sweep is shown here; start `loopscale app --sweep FOLDER`")
        return live

    @api.get("/sweep", response_model=SweepReply, responses=documented(404, 422))
    def get_sweep(fitted: Annotated[str, Query(max_length=2000, alias="laws")] = "") -> JSONResponse:
        """Return the state of the live sweep and its losses so far, and how uncertain the laws fitted to it are."""
        asked = [name for name in fitted.split(",") if name][:MOST_LAWS]
        return JSONResponse(finite(shown().read({name: laws.find(name) for name in asked})))

    @api.get(
        "/sweep.csv", response_class=Response, responses={**documented(404, 422), 200: {"content": {"text/csv": {}}}}
    )
    def sweep_csv() -> Response:
        """Return the losses of the live sweep as CSV."""
        return Response(shown().csv(), media_type="text/csv")

    return api
