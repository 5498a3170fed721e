"""The final loss that a law forecasts for a run, and an alarm when the run leaves the forecast's interval."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from loopscale.architecture import Architecture
from loopscale.core.errors import InputError
from loopscale.planning.predictions import Prediction, predict
from loopscale.scaling import find_law
from loopscale.train.callbacks.callback import Callback

if TYPE_CHECKING:
    from loopscale.model import LoopedMoEConfig
    from loopscale.train.config import TrainConfig
    from loopscale.train.step import Gradients

START = 0.2
"""Fraction of a run before which it is not judged: a law says nothing of warm-up."""


class Forecast(Callback):
    """The 90% interval of a run's final loss: ``[run] law``.

    A law describes runs whose schedule is finished. Before its end a run is judged by the loss that it would end with
    if it gained, from here on, what the law says that the remaining tokens give. The decay of the learning rate gives
    more than that, so the run may be ``slack`` above the interval until its last step.
    """

    priority = 60  # after the validation loss

    def __init__(self, law: str, architecture: Architecture, recurrence: int, tokens: float, slack: float) -> None:
        self._law, self._architecture, self._recurrence = find_law(law), architecture, recurrence
        self._slack = slack
        if self._law.degenerate:
            self._refuse(f"{self._law.name} is degenerate and forecasts nothing")
        self._set_length(tokens)

    @classmethod
    def for_run(cls, config: TrainConfig, model: LoopedMoEConfig) -> Forecast | None:
        run = config.run
        if run.law is None:
            return None
        architecture, tokens = model.to_architecture(), config.steps * config.step_tokens
        return cls(run.law, architecture, config.model.recurrence, tokens, run.law_slack)

    def _set_length(self, tokens: float) -> None:
        """Forecast the loss of a run of this length."""
        self._tokens, self.prediction = tokens, self._predict(tokens)
        if self.prediction.trust.level == "beyond":
            reasons = "; ".join(self.prediction.trust.reasons)
            self._refuse(
                f"this run lies more than 10x beyond what {self._law.name} was fitted on ({reasons}), so its forecast "
                "is withheld"
            )
        if self.prediction.interval is None:
            self._refuse(f"{self._law.name} has no resampled laws, so no interval")

    def _refuse(self, problem: str) -> NoReturn:
        raise InputError(f"[run]: field 'law': {problem}", remedy="remove the field to train without a forecast")

    def start(self) -> None:
        tokens = self.trainer.config.steps * self.trainer.config.step_tokens
        if tokens != self._tokens:  # a branch of a sweep's trunk is shorter
            self._set_length(tokens)

    def measure(self, row: dict[str, Any], gradients: Gradients) -> None:
        if "validation_loss" in row:
            row |= self.row(row["tokens"], row["validation_loss"])

    def summarise(self, summary: dict[str, Any]) -> None:
        summary["forecast"] = self.summary(summary["validation_loss"])

    def row(self, tokens: float, loss: float) -> dict[str, Any]:
        """Return the forecast for a row of metrics, with an alarm if the loss after ``tokens`` departs from it."""
        low, high = self._interval
        alarm = self._alarm(tokens, loss)
        numbers = {"forecast": self.prediction.loss, "forecast_low": low, "forecast_high": high}
        return numbers if alarm is None else {**numbers, "alarm": alarm}

    def summary(self, loss: float) -> dict[str, Any]:
        """Return the forecast beside the loss that came out, for the summary of a run."""
        low, high = self._interval
        return {
            "law": self.prediction.law,
            "loss": self.prediction.loss,
            "low": low,
            "high": high,
            "inside": low <= loss <= high,
            "trust": self.prediction.trust.to_dict(),
        }

    @property
    def _interval(self) -> tuple[float, float]:
        assert self.prediction.interval is not None
        return self.prediction.interval["low"], self.prediction.interval["high"]

    def _alarm(self, tokens: float, loss: float) -> str | None:
        """Return a sentence if the run is on its way out of the interval."""
        if tokens < START * self._tokens:
            return None
        low, high = self._interval
        if loss < low:
            return f"the loss {loss:.4f} is below the forecast of {low:.4f} to {high:.4f}: the law does not describe it"
        ending = loss - (self._predict(tokens).loss - self.prediction.loss)
        slack = self._slack if tokens < self._tokens else 0.0
        if ending <= high + slack:
            return None
        allowed = f", even with {slack:g} nats for the decay of the learning rate" if slack else ""
        return f"the loss is on its way to {ending:.4f}, above the forecast of {low:.4f} to {high:.4f}{allowed}"

    def _predict(self, tokens: float) -> Prediction:
        return predict(self._architecture, tokens, self._recurrence, self._law, extrapolate=True)
