"""A run: started or resumed, trained, validated, exported.

Everything at a step is a function of the run's seed and the step: the batch, the learning rate, all random draws. A run
that was killed and resumed from a checkpoint therefore equals, bit for bit, the run that was not.
"""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loopscale.core.errors import InputError
from loopscale.core.files import replace_folder, seal_folder, write_json
from loopscale.model import LoopedMoEConfig, LoopedMoEForCausalLM
from loopscale.model.loading import quiet
from loopscale.train import run_dir
from loopscale.train.auto import deterministic, settled
from loopscale.train.averaging import Average
from loopscale.train.callbacks import Callback, callbacks_of, states_by_name
from loopscale.train.callbacks.validation import validation_loss
from loopscale.train.checkpoints import Checkpoints, Manifest, on_disk
from loopscale.train.config import TrainConfig
from loopscale.train.data.batches import Batch
from loopscale.train.data.stores import model_config, open_batches, open_tokens
from loopscale.train.data.token_store import TokenStore
from loopscale.train.identity import identity
from loopscale.train.init import initialise, meta_model
from loopscale.train.memory import recompute_blocks
from loopscale.train.optimizers import build_optimizer, fill_state, set_rate
from loopscale.train.parallel.process import Process, this_process
from loopscale.train.products import fast_products
from loopscale.train.schedule import cooldown_start, rate_factor, scheduled_recurrence, shared_steps
from loopscale.train.start import start_from
from loopscale.train.step import apply, gradients, named_state, repeatable, seed_step
from loopscale.train.summary import provenance, summary_of

MOST_COMPILED = 64
"""Kinds of block that one process compiles; further ones run uncompiled. A worker of a sweep meets many."""


def save_model(target: Path, config: LoopedMoEConfig, tensors: dict[str, Tensor], store: TokenStore) -> None:
    """Write the model atomically: to a temporary folder, then renamed."""
    temporary = target.with_name(f".{target.name}.partial")
    with on_disk(target), quiet():
        shutil.rmtree(temporary, ignore_errors=True)
        model = LoopedMoEForCausalLM(config)
        model.load_state_dict({name: tensor.cpu() for name, tensor in tensors.items()})
        model.save_pretrained(str(temporary))
        store.tokenizer().save_pretrained(str(temporary))
        seal_folder(temporary)
        replace_folder(temporary, target)


class Trainer:
    """One run in its folder."""

    def __init__(
        self,
        config: TrainConfig,
        out: str | Path,
        *,
        process: Process | None = None,
        progress: bool = False,
        callbacks: Iterable[Callback] = (),
        allow_code: bool = False,
        data: TokenStore | None = None,
    ) -> None:
        self.out, self.progress = Path(out), progress
        self.config = config = settled(config, self.out)
        self.process = this_process(config) if process is None else process
        self.store = data or open_tokens(config, progress and self.process.rank == 0)
        self.model_config: LoopedMoEConfig = model_config(config, self.store)
        self.batches, self.validation = open_batches(config, self.store)
        self.callbacks = callbacks_of(config, self.model_config, callbacks, allow_code=allow_code)
        for callback in self.callbacks:
            callback.trainer = self
        with run_dir.locked(self.out, self.process.rank):
            run_dir.open_run(self.out, config, self.process.rank)
        self.model = self.process.prepare(meta_model(self.model_config))
        initialise(self.model, config.run.seed, config.model.residual_init)
        self.checkpoints = self._checkpoints(self.out)
        if config.model.init_from is not None and not self.checkpoints.steps():
            start_from(self.model, config.model.init_from)
        self.average = Average(self.model, config.run.ema) if config.run.ema else None
        recompute_blocks(self.model, config, self.process.ranks, self.process.dtype)
        if config.run.compile:
            for block in (*self.model.model.prelude, *self.model.model.loop, *self.model.model.coda):
                block.compile(dynamic=False, recompile_limit=MOST_COMPILED)
        self.optimizer = build_optimizer(
            self.model, config.optimizer, self.model_config.hidden_size, self.model_config.recurrence
        )
        fill_state(self.optimizer)
        self.step = 0
        self.resumes = 0
        """How often this run was resumed from a checkpoint."""
        self.deterministic = deterministic(config.run.deterministic, self.process.device)
        self._validated: float | None = None
        """The validation loss after this step, once it is known."""
        self._saved: int | None = None
        """The step of the last checkpoint."""
        self._batch_maker, self._next_parts = ThreadPoolExecutor(1), dict[int, Future[list[Batch]]]()
        """Makes the next batch while a GPU computes; on a CPU it would only compete with the step."""

    def train(self, until: int | None = None, stop: Callable[[], bool] = lambda: False) -> None:
        """Train up to step ``until``, or to the end of the schedule; ``stop`` is called before every step."""
        last = self.config.steps if until is None else min(until, self.config.steps)
        self.model.train()
        with self._kernels(), run_dir.locked(self.out, self.process.rank), ExitStack() as started:
            for callback in self.callbacks:
                started.callback(callback.stop)
                callback.start()
            while self.step < last and not self.process.any(stop()):
                self.one_step()

    def one_step(self) -> None:
        """Do one step: the gradients of a batch, an update of the weights, and what callbacks do beside it."""
        step, steps, schedule = self.step, self.config.steps, self.config.schedule
        factor = rate_factor(schedule, step, steps)
        set_rate(self.optimizer, factor)
        seed_step(self.config.run.seed, step)
        parts = self.parts(step) if self.process.device.type == "cpu" else self.prefetched(step)
        passes = scheduled_recurrence(schedule, step, steps)
        result = gradients(self.model, parts, self.process, self.config.data.document_mask, passes)
        row_is_due = self.row_is_due
        skips = [callback.skip_update(result) for callback in self.callbacks]
        if any(skips):
            norm = torch.zeros(())
            self.optimizer.zero_grad(set_to_none=True)
        else:
            norm = apply(self.model, self.optimizer, self.process, self.config.optimizer.clip)
            if self.average is not None:
                self.average.update(step)
            for callback in self.callbacks:
                callback.after_update(result)
        self.step, self._validated = step + 1, None
        if row_is_due:
            row = {
                "step": self.step,
                "tokens": self.step * self.config.step_tokens,
                "loss": float(result.loss),
                "gradient_norm": float(norm),
                "learning_rate": self.config.optimizer.learning_rate * factor,
            }
            for callback in self.callbacks:
                callback.measure(row, result)
            for callback in self.callbacks:
                callback.report(row)
        for callback in self.callbacks:
            callback.after_step()

    @property
    def row_is_due(self) -> bool:
        """Whether the step that is under way ends with a row of metrics."""
        run, step = self.config.run, self.step + 1
        return step == self.config.steps or any(
            every and step % every == 0 for every in (run.log_every, run.validate_every)
        )

    def is_due(self, every: int) -> bool:
        """Tell whether something that happens every ``every`` steps is due after this one; 0 is never."""
        return bool(every) and self.step % every == 0

    @property
    def trunk_end(self) -> int | None:
        """The step whose checkpoint longer "wsd" runs can branch from, if this run writes checkpoints."""
        if self.config.schedule.kind != "wsd" or not self.config.run.checkpoint_every:
            return None
        return cooldown_start(self.config.schedule, self.config.steps)

    def resume(self, *, at: int | None = None, latest: int | None = None, source: Path | None = None) -> bool:
        """Resume from the latest complete checkpoint; return whether there was one.

        ``at`` selects a step, ``latest`` excludes later steps, and ``source`` is the folder of another run to branch
        from.
        """
        checkpoints = self.checkpoints if source is None else Checkpoints(source / "checkpoints", self.config.run.keep)
        manifest = checkpoints.load(self._identity(), self.tensors(), at=at, latest=latest)
        if manifest is None:
            return False
        steps = manifest.state.get("steps")
        if isinstance(steps, int):
            run_dir.check_length(
                checkpoints.folder.parent, self.config.schedule, manifest.step, steps, self.config.steps
            )
        self._load_state(manifest.step, manifest.state)
        self.resumes += 1
        self._saved = manifest.step if source is None else None
        return True

    def prefetched(self, step: int) -> list[Batch]:
        """Return the parts of a batch that was made during the step before, and start to make the next one."""
        waiting = self._next_parts.pop(step, None)
        parts = self.parts(step) if waiting is None else waiting.result()
        self._next_parts.clear()
        if step + 1 < self.config.steps:
            self._next_parts[step + 1] = self._batch_maker.submit(self.parts, step + 1)
        return parts

    def parts(self, step: int) -> list[Batch]:
        """Return the parts in which this process computes its share of a batch."""
        batch = self.batches.batch(step, rank=self.process.rank, ranks=self.process.ranks)
        if len(batch.ids) % self.config.run.parts:
            raise InputError(
                f"[run]: a process has {len(batch.ids)} sequences of a batch, which {self.config.run.parts} parts "
                "('accumulate') do not divide; change one of them"
            )
        return batch.split(self.config.run.parts)

    def validate(self, recurrence: int | None = None) -> float:
        """Return the loss on the validation split; it is computed once per step."""
        if recurrence is None and self._validated is not None:
            return self._validated
        with self._kernels(), self._averaged():
            loss = validation_loss(
                self.model, self.validation, self.config.run.validation_sequences, self.process, recurrence
            )
        if recurrence is None:
            self._validated = loss
        return loss

    def save(self) -> Path:
        """Write a checkpoint of the current step, unless it is already on disk."""
        if self._saved != self.step:
            for callback in self.callbacks:
                callback.before_save()
            manifest = Manifest(self.step, self._identity(), self._state())
            self.checkpoints.save(manifest, self.tensors(), protect=self.trunk_end)
            self._saved = self.step
        return self.checkpoints.path(self.step)

    def tensors(self) -> dict[str, Tensor]:
        """Return all state tensors by name."""
        named = [*self.model.named_parameters(), *self.model.named_buffers()]
        weights = {f"model.{name}": tensor.detach() for name, tensor in named}
        if self.average is not None:
            weights |= {f"average.{name}": tensor for name, tensor in self.average.tensors.items()}
        return weights | {f"optimizer.{name}": value for name, value in named_state(self.model, self.optimizer)}

    def snapshot(self) -> tuple[int, dict[str, Any], dict[str, Tensor]]:
        """Return a copy of the current state, for ``restore``."""
        return self.step, self._state(), {name: tensor.clone() for name, tensor in self.tensors().items()}

    @torch.no_grad()
    def restore(self, snapshot: tuple[int, dict[str, Any], dict[str, Tensor]]) -> None:
        """Return to a snapshot."""
        step, state, tensors = snapshot
        for name, tensor in self.tensors().items():
            tensor.copy_(tensors[name])
        self._load_state(step, state)
        self._saved = None

    @contextmanager
    def branch(self, tokens: float, out: Path) -> Iterator[None]:
        """Temporarily fork this run: within the block it is a run of ``tokens`` that continues in ``out``."""
        snapshot, trunk = self.snapshot(), (self.config, self.out, self.checkpoints)
        self.config = self.config.changed(run={"tokens": tokens})
        self.out, self.checkpoints = out, self._checkpoints(out)
        self._saved = None
        try:
            run_dir.open_run(out, self.config, self.process.rank)
            yield
            self.checkpoints.wait()
        finally:
            self.config, self.out, self.checkpoints = trunk
            self.restore(snapshot)

    def finish(self, *, model: bool = True, **facts: Any) -> dict[str, Any]:
        """Export the model in Hugging Face form, if wanted; write ``summary.json`` with ``facts``, and return it."""
        self.checkpoints.wait()
        with self._averaged():
            tensors = self.process.full_state_dict(self.model) if model else {}
            tensors = {name: tensor.clone() for name, tensor in tensors.items()} if self.average else tensors
        summary = summary_of(self.config, self.model_config, self.step, self.validate()) | facts
        summary |= provenance(self.config, self.store, self.resumes)
        for callback in self.callbacks:
            callback.summarise(summary)
        if self.process.rank == 0:
            if model:
                save_model(self.out / "model", self.model_config, tensors, self.store)
            write_json(self.out / "summary.json", summary)
        return summary

    @contextmanager
    def _kernels(self) -> Iterator[None]:
        """Compute with the kernels that the run's settings ask for."""
        with repeatable(self.deterministic), fast_products(bool(self.config.run.compile)):
            yield

    def _averaged(self) -> AbstractContextManager[None]:
        """Give the model its averaged weights within the block, if the run keeps any."""
        return nullcontext() if self.average is None else self.average.applied()

    def _state(self) -> dict[str, Any]:
        """Return the plain values that ``_load_state`` reads."""
        states = {name: callback.state_dict() for name, callback in states_by_name(self.callbacks).items()}
        return {
            "steps": self.config.steps,
            "resumes": self.resumes,
            "callbacks": {name: state for name, state in states.items() if state},
        }

    def _load_state(self, step: int, state: dict[str, Any]) -> None:
        """Take over the plain values of a checkpoint; values that an older or damaged one lacks start anew."""
        self.step, self._validated = step, None
        resumes, states = state.get("resumes"), state.get("callbacks")
        self.resumes = resumes if isinstance(resumes, int) else 0
        if not isinstance(states, dict):
            states = {"LossWatch": state}  # where version 0.2 kept its values
        for name, callback in states_by_name(self.callbacks).items():
            stored = states.get(name)
            callback.load_state_dict(stored if isinstance(stored, dict) else {})

    def _identity(self) -> dict[str, Any]:
        return identity(self.config, self.model_config, self.store)

    def _checkpoints(self, out: Path) -> Checkpoints:
        return Checkpoints(out / "checkpoints", self.config.run.keep, background=self.config.run.async_checkpoints)


def train(
    config: TrainConfig,
    out: str | Path,
    *,
    progress: bool = False,
    branch: str | Path | None = None,
    callbacks: Iterable[Callback] = (),
    allow_code: bool = False,
    data: TokenStore | None = None,
) -> dict[str, Any] | None:
    """Train a run to its end in the folder ``out``, resuming where an earlier call stopped; return its summary.

    ``branch`` is the folder of another run with the same settings but another length: the new run starts from its
    latest checkpoint that both lengths share. ``callbacks`` are added to those that the settings ask for; modules that
    [[callbacks]] names are imported only with ``allow_code``. ``data`` takes the place of [data], as a ``DrawnStore``
    of your own function does. After SIGTERM a checkpoint is written and the result is None.
    """
    summary = run_dir.finished(Path(out), config)
    if summary is not None:
        return summary
    with _sigterm() as terminated:
        trainer = Trainer(config, out, progress=progress, callbacks=callbacks, allow_code=allow_code, data=data)
        try:
            with run_dir.locked(trainer.out, trainer.process.rank):
                if not trainer.resume() and branch is not None:
                    _branch_from(trainer, Path(branch))
                trainer.train(stop=terminated)
                trainer.save()
                return trainer.finish() if trainer.step == config.steps else None
        finally:
            trainer.process.close()


def _branch_from(trainer: Trainer, source: Path) -> None:
    """Start a run from the latest checkpoint of another one that both have in common."""
    stored = run_dir.stored_config(source)
    if stored is None:
        raise InputError(f"{source}: no run to branch from: the folder has no run.json")
    config = trainer.config
    shared = shared_steps(config.schedule, min(stored.steps, config.steps))
    if not shared or not trainer.resume(latest=shared, source=source):
        raise InputError(
            f"{source}: no checkpoint to branch from: runs of the {config.schedule.kind} schedule with these lengths "
            f"share their first {shared} steps, and there is no checkpoint among them; start a new run without --branch"
        )


@contextmanager
def _sigterm() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether SIGTERM arrived; within the block it does not end the process."""
    received = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield received.is_set
        return
    before = signal.signal(signal.SIGTERM, lambda *_: received.set())
    try:
        yield received.is_set
    finally:
        signal.signal(signal.SIGTERM, before)
