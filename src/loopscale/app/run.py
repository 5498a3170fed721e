"""A live run: the losses, the time left and the forecast of a training run, read from its folder while it trains."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse

from loopscale.app.problems import RefusalError, documented
from loopscale.app.schemas import RunReply
from loopscale.core.errors import InputError
from loopscale.core.files import finite
from loopscale.core.quantities import format_count, format_duration

SHOWN = 1000
"""Rows of metrics that one reading returns, evenly spaced, the last one always."""
RECENT = 10
"""Rows whose median speed says how long the rest takes."""
COLUMNS = ("step", "tokens", "loss", "validation_loss", "learning_rate", "tokens_per_second")


class LiveRun:
    """The folder of a training run; each reading opens its files anew."""

    def __init__(self, folder: Path) -> None:
        from loopscale.train.run_dir import stored_config

        self.folder = folder
        if stored_config(folder) is None:
            raise InputError(f"{folder}: no run.json; give the folder of a run, as `loopscale train --out` names it")
        self.name = folder.resolve().name

    def read(self) -> dict[str, Any]:
        """Return the state of the run, its losses so far, the time left and the loss that it will end with."""
        from loopscale.train.metrics import read_metrics
        from loopscale.train.run_dir import is_locked, read_summary, stored_config

        config = stored_config(self.folder)
        if config is None:
            raise InputError(f"{self.folder}: its run.json is gone")
        file = self.folder / "metrics.jsonl"
        rows = read_metrics(file) if file.is_file() else []
        summary = read_summary(self.folder)
        done = summary is not None and summary["tokens"] == config.steps * config.step_tokens
        state = "finished" if done else "training" if is_locked(self.folder) else "stopped"
        last = rows[-1] if rows else {}
        step = config.steps if done else int(last.get("step", 0))
        speeds = [row["tokens_per_second"] for row in rows[-RECENT:] if row.get("tokens_per_second")]
        speed = median(speeds) if speeds else None
        left = None if speed is None or done else (config.steps - step) * config.step_tokens / speed
        forecast = None if done else self._forecast()
        reply = {
            "name": self.name,
            "state": state,
            "step": step,
            "steps": config.steps,
            "step_tokens": config.step_tokens,
            "tokens_per_second": speed,
            "seconds_left": left,
            "columns": {name: [row.get(name) for row in _thinned(rows)] for name in COLUMNS},
            "forecast": forecast,
            "law": _law(rows),
            "alarms": [{"step": row["step"], "text": row["alarm"]} for row in rows if "alarm" in row][-RECENT:],
            "validation_loss": summary["validation_loss"] if done and summary is not None else None,
        }
        return reply | {"text": _text(reply)}

    def _forecast(self) -> dict[str, Any] | None:
        """Return the loss that the run will end with by its log so far; None while the log is too short."""
        from loopscale.fitting.data.run_logs import read_log
        from loopscale.fitting.running import final_loss

        try:
            found = final_loss(read_log(self.folder))
        except InputError:
            return None
        return {name: getattr(found, name) for name in ("final", "low", "high", "level")} | {"text": str(found)}


def _thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return at most ``SHOWN`` rows; those with a validation loss stay as far as there is room."""
    if len(rows) <= SHOWN:
        return rows
    stride = -(-len(rows) // (SHOWN // 2))
    validated = [k for k, row in enumerate(rows) if "validation_loss" in row][-SHOWN // 2 + 1 :]
    return [rows[k] for k in sorted({*range(0, len(rows), stride), *validated, len(rows) - 1})]


def _law(rows: list[dict[str, Any]]) -> dict[str, float] | None:
    """Return what the law of ``[run] law`` forecasts, as the last row with a validation loss has it."""
    row = next((row for row in reversed(rows) if "forecast" in row), None)
    return None if row is None else {"loss": row["forecast"], "low": row["forecast_low"], "high": row["forecast_high"]}


def _text(reply: dict[str, Any]) -> str:
    """Return the state of the run in one sentence."""
    if reply["state"] == "finished":
        return f"Finished: validation loss {reply['validation_loss']:.4f} after {reply['steps']:,} steps."
    where = f"step {reply['step']:,} of {reply['steps']:,}"
    speed, left, forecast = reply["tokens_per_second"], reply["seconds_left"], reply["forecast"]
    facts = [f"{format_count(speed)} tokens/s"] if speed else []
    facts += [f"about {format_duration(left)} left"] if left is not None else []
    if forecast is not None:
        facts.append(f"ends at {forecast['final']:.3f} ({forecast['low']:.3f} to {forecast['high']:.3f}) by its log")
    head = "Training" if reply["state"] == "training" else "Stopped; the same `loopscale train` command resumes it"
    return f"{head}: {', '.join([where, *facts])}."


def run_routes(live: LiveRun | None) -> APIRouter:
    """Return the route of the live run; without one it answers 404."""
    api = APIRouter(prefix="/api", tags=["run"])

    @api.get("/run", response_model=RunReply, responses=documented(404, 422))
    def get_run() -> JSONResponse:
        """Return the state of the live run: its losses so far, the time left and its forecast."""
        if live is None:
            raise RefusalError(404, "no run is shown here; start `loopscale app --run FOLDER`")
        return JSONResponse(finite(live.read()))

    return api
