"""A worker: claims runs one after the other until there is none, wherever it was started."""

from __future__ import annotations

import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import chdir, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

from loopscale.errors import InputError
from loopscale.sweep.store import Claim, ClaimLost, Store, run_folder
from loopscale.train.config import TrainConfig
from loopscale.train.step import shared_steps
from loopscale.train.trainer import Trainer

Record = Callable[[int, float, dict[str, Any]], None]
"""Takes the tokens, the loss and the facts of a finished point."""


def executed_steps(config: TrainConfig, points: Iterable[int]) -> int:
    """Return the steps that a trunk and its branches take in all."""
    ends = [tokens // config.step_tokens for tokens in points]
    starts = [shared_steps(config.schedule, end) for end in ends]
    return max(starts) + sum(end - start for end, start in zip(ends, starts, strict=True))


class Trunk:
    """A run in its folder: ``checkpoints`` of the trunk, and a folder for each point."""

    def __init__(self, config: TrainConfig, points: Iterable[int], folder: Path, keep_models: bool) -> None:
        self.points, self.folder, self.keep_models = sorted(points), folder, keep_models
        self.trainer = Trainer(config, folder)
        self._cooled = 0
        """Steps of the branches that are done."""

    @property
    def steps_done(self) -> int:
        """How many steps of trunk and branches are behind."""
        return self.trainer.step + self._cooled

    def run(self, done: Iterable[int], record: Record, stop: Callable[[], bool]) -> bool:
        """Do the points that are not ``done``; tell whether all are, or ``stop`` came first."""
        pending = [tokens for tokens in self.points if tokens not in set(done)]
        self._cooled = sum(self._end(each) - self._start(each) for each in self.points if each not in pending)
        if pending:
            self.trainer.resume(latest=self._start(pending[0]))
        for tokens in pending:
            if not self._to(self._start(tokens), stop):
                return False
            facts = self._branch(tokens, stop)
            if facts is None:
                return False
            record(tokens, facts["validation_loss"], facts)
            shutil.rmtree(self._folder(tokens) / "checkpoints", ignore_errors=True)
            self._cooled += self._end(tokens) - self._start(tokens)
        return True

    def _to(self, step: int, stop: Callable[[], bool]) -> bool:
        """Train the trunk up to a step and leave a checkpoint there, or where it was stopped."""
        begun = self.trainer.step
        self.trainer.train(until=step, stop=stop)
        if self.trainer.step > begun:
            self.trainer.save()
        return self.trainer.step == step

    def _branch(self, tokens: int, stop: Callable[[], bool]) -> dict[str, Any] | None:
        """Cool down to a point; return what it is, or None when stopped before."""
        began = time.perf_counter()
        with self.trainer.branch(tokens, self._folder(tokens)):
            self.trainer.resume()
            self.trainer.train(stop=stop)
            if self.trainer.step < self._end(tokens):
                self.trainer.save()
                return None
            return self._facts() | {"cooldown_seconds": time.perf_counter() - began}

    def _facts(self) -> dict[str, Any]:
        """Return the observation of this moment, and leave it in the point's folder."""
        trainer = self.trainer
        config, model = trainer.config, trainer.model_config
        real = model.to_architecture().real_train_flops_per_token(context=config.data.context)
        return trainer.finish(
            model=self.keep_models,
            real_training_flops=float(real) * (trainer.step * config.step_tokens),
            width=model.hidden_size,
            layers=model.prelude_layers + model.loop_layers + model.coda_layers,
            learning_rate=config.optimizer.learning_rate,
        )

    def _folder(self, tokens: int) -> Path:
        return self.folder / f"D{tokens}"

    def _end(self, tokens: int) -> int:
        return tokens // self.trainer.config.step_tokens

    def _start(self, tokens: int) -> int:
        return shared_steps(self.trainer.config.schedule, self._end(tokens))


BEAT = 2.0
"""Seconds between a worker's signs of life."""


@dataclass(frozen=True)
class Job:
    """What a worker is told; plain values, which any launcher can carry."""

    root: str
    """The folder that the sweep's file is in: the sweep's paths are seen from there."""
    folder: str
    session: str
    """The call of ``loopscale sweep run`` that the worker belongs to: it can be asked to stop."""
    keep_models: bool
    only: tuple[str, ...] | None = None
    """Runs to claim from; by default all."""
    deadline: float | None = None
    """When to stop, as ``time.time`` counts."""
    core: int | None = None
    """The core to stay on."""


def work(job: Job, parent_lives: Callable[[], bool] = lambda: True) -> int:
    """Claim and train until nothing is left or somebody asks to stop; return how many runs were finished."""
    import torch

    torch.set_num_threads(1)
    if job.core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {job.core})
    finished = 0
    # Runs keep relative paths, so that a sweep that was moved is the same sweep.
    with chdir(job.root), Store(Path(job.folder)) as store:
        while not _over(job) and parent_lives() and store.fact(stop_fact(job.session)) is None:
            claim = store.claim(job.only)
            if claim is None:
                break
            finished += _one(store, claim, job, parent_lives)
    return finished


def stop_fact(session: str) -> str:
    """Return the name under which a session's wish to stop is kept."""
    return f"stop {session}"


def _over(job: Job) -> bool:
    return job.deadline is not None and time.time() >= job.deadline


def _one(store: Store, claim: Claim, job: Job, parent_lives: Callable[[], bool]) -> bool:
    """Train one run; whatever goes wrong with it is kept with it. Tell whether it was finished."""
    try:
        with _Pulse(claim, job) as pulse:
            done = _train(store, claim, job, pulse, parent_lives)
        if done:
            store.finish(claim)
        else:
            store.release(claim)
        return done
    except ClaimLost:
        pass
    except Exception as error:
        with suppress(ClaimLost):
            store.fail(claim, str(error) if isinstance(error, InputError) else traceback.format_exc())
    except BaseException:  # somebody ends this worker, and its process may live on
        with suppress(ClaimLost):
            store.release(claim)
        raise
    return False


def _train(store: Store, claim: Claim, job: Job, pulse: _Pulse, parent_lives: Callable[[], bool]) -> bool:
    config = TrainConfig.from_dict(claim.config, f"run {claim.key}")
    trunk = Trunk(config, claim.points, run_folder(Path(job.folder), claim.key), job.keep_models)
    pulse.progress = lambda: trunk.steps_done
    return trunk.run(
        claim.done,
        lambda tokens, loss, facts: store.record(claim, tokens, loss, facts),
        lambda: pulse.asked() or _over(job) or not parent_lives(),
    )


class _Pulse:
    """Signs of life from a thread of its own, however long a step takes; it hears of wishes to stop, too."""

    def __init__(self, claim: Claim, job: Job) -> None:
        self._stop = self._lost = False
        self.progress: Callable[[], int] = lambda: 0
        self._claim, self._job, self._ended = claim, job, Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Pulse:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Give the last sign."""
        self._ended.set()
        self._thread.join()

    def asked(self) -> bool:
        """Tell whether somebody asked to stop; a run that is no longer the worker's own is left at once."""
        if self._lost:
            raise ClaimLost(self._claim.key)
        return self._stop

    def _run(self) -> None:
        last = time.monotonic()
        with Store(Path(self._job.folder)) as store:
            while True:
                ended = self._ended.wait(BEAT)
                now = time.monotonic()
                self._lost = not store.beat(self._claim, self.progress(), now - last)
                self._stop = store.fact(stop_fact(self._job.session)) is not None
                last = now
                if ended or self._lost:
                    return
