"""A run: started or resumed, trained, validated, exported.

Everything at a step is a function of the run's seed and the step: the batch, the learning rate, all random draws. A run
that was killed and resumed from a checkpoint therefore equals, bit for bit, the run that was not.
"""

from __future__ import annotations

import math
import shutil
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from loopscale.core.errors import DivergenceError, InputError
from loopscale.core.files import replace_folder, seal_folder, write_json
from loopscale.model import LoopedMoEConfig, LoopedMoEForCausalLM
from loopscale.model.balancing import load_ratio
from loopscale.model.forward import Trace
from loopscale.model.loading import quiet
from loopscale.train import run_dir
from loopscale.train.checkpoints import Checkpoints, Manifest, on_disk
from loopscale.train.config import TrainConfig, cooldown_start, rate_factor, scheduled_recurrence, shared_steps
from loopscale.train.data.batches import Batch, Batches, MixedBatches
from loopscale.train.data.labels import LabelledBatches, LabelledStore
from loopscale.train.data.token_store import Mixture, TokenStore
from loopscale.train.forecast import Forecast
from loopscale.train.init import initialise, meta_model
from loopscale.train.metrics import ProgressLine, Sink, open_sinks
from loopscale.train.parallel.process import Process, this_process
from loopscale.train.step import (
    StepResult,
    apply,
    build_optimizer,
    fill_state,
    gradients,
    named_state,
    repeatable,
    seed_step,
    set_rate,
    stored_blocks,
)

AnyBatches = Batches | MixedBatches | LabelledBatches


@torch.no_grad()
def validation_loss(
    model: LoopedMoEForCausalLM,
    batches: AnyBatches,
    sequences: int,
    process: Process,
    recurrence: int | None = None,
) -> float:
    """Return the mean loss over the first ``sequences`` of a split, at the model's recurrence or another."""
    was_training = model.training
    model.eval()  # type: ignore[no-untyped-call]
    steps = min(batches.steps_per_epoch, -(-sequences // batches.size))
    sums = torch.zeros(2, dtype=torch.float64, device=process.device)
    for step in range(steps):
        part = batches.batch(step, rank=process.rank, ranks=process.ranks)
        ids, labels = (process.put(array) for array in (part.ids, part.labels))
        # Every process runs every step, targets or none: sharded models gather their weights together.
        loss = model(ids, labels=labels, use_cache=False, recurrence=recurrence, output_logits=False).loss
        if part.targets:
            sums += torch.stack([loss.double() * part.targets, sums.new_tensor(float(part.targets))])
    model.train(was_training)
    total, targets = process.total(sums).tolist()
    return float(total / targets)


@cache
def peak_flops(device: torch.device, dtype: torch.dtype, size: int = 768) -> float:
    """Return the FLOP/s that utilisation is a share of: the maker's for a known GPU in bf16, else as measured.

    The measurement is a large matrix product, the best of a few: less than the maker's number.
    """
    if device.type == "cuda" and dtype == torch.bfloat16:
        from loopscale.planning.devices import device_called

        listed = device_called(torch.cuda.get_device_name(device))
        if listed is not None:
            return listed.flops
    a, b = torch.randn(2, size, size, device=device).to(dtype)
    best = float("inf")
    for _ in range(8):
        start = time.perf_counter()
        torch.mm(a, b)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


class Throughput:
    """Tokens and FLOPs per second since the last reading."""

    def __init__(self, flops_per_token: float, peak: float) -> None:
        self._flops, self._peak = flops_per_token, peak
        self.start()

    def start(self) -> None:
        """Begin a new reading."""
        self._tokens, self._since = 0, time.perf_counter()

    def add(self, tokens: int) -> None:
        """Count the tokens of a step."""
        self._tokens += tokens

    def read(self) -> dict[str, float]:
        """Return the throughput since the last reading, and begin a new one."""
        rate = self._tokens / max(time.perf_counter() - self._since, 1e-9)
        self.start()
        flops = rate * self._flops
        return {"tokens_per_second": rate, "flops_per_second": flops, "peak_share": flops / self._peak}


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


Evaluate = Callable[[LoopedMoEForCausalLM, TokenStore], dict[str, float]]
"""Returns scores of a model in training by name."""
SMOOTH = 50
"""Steps that the loss is averaged over when looking for divergence."""
SHAPES = 64
"""Kinds of block that one process compiles; further ones run uncompiled. A sweep's worker sees many."""


class Trainer:
    """One run in its folder."""

    def __init__(
        self,
        config: TrainConfig,
        out: str | Path,
        *,
        process: Process | None = None,
        progress: bool = False,
        evaluate: Evaluate | None = None,
    ) -> None:
        self.config, self.out, self.shown, self._evaluate = config, Path(out), progress, evaluate
        if config.run.eval_tasks is not None and evaluate is None:
            raise InputError(
                "[run]: field 'eval_tasks' is for `loopscale train`; in Python give evaluate="
                "loopscale.evaluate.while_training(config), and evaluate the models of a sweep with `loopscale eval`"
            )
        self.process = this_process(config) if process is None else process
        self.store = run_dir.open_tokens(config, progress and self.process.rank == 0)
        self.model_config: LoopedMoEConfig = run_dir.model_config(config, self.store)
        self.batches, self.validation = open_batches(config, self.store)
        self.forecast = Forecast.of(config, self.model_config.to_architecture())
        with run_dir.locked(self.out, self.process.rank):
            run_dir.open_run(self.out, config, self.process.rank)
        self.model = self.process.prepare(meta_model(self.model_config))
        initialise(self.model, config.run.seed, config.model.residual_init)
        self._set_activation_memory()
        if config.run.compile:
            for block in (*self.model.model.prelude, *self.model.model.loop, *self.model.model.coda):
                block.compile(dynamic=False, recompile_limit=SHAPES)
        self.optimizer = build_optimizer(
            self.model, config.optimizer, self.model_config.hidden_size, self.model_config.recurrence
        )
        fill_state(self.optimizer)
        self.checkpoints = self._checkpoints(self.out)
        self.step = 0
        self.resumes = 0
        """How often this run was resumed from a checkpoint."""
        self._recent: deque[float] = deque(maxlen=SMOOTH)
        self._lowest = math.inf
        self._validated: float | None = None
        self._saved: int | None = None
        self._unread: list[tuple[int, Tensor]] = []
        """Losses that are still on the device, with their steps."""
        self._maker, self._ahead = ThreadPoolExecutor(1), dict[int, Future[list[Batch]]]()
        """Makes the next batch while a GPU computes; on a CPU it would only compete with the step."""
        self._loss = math.nan
        """The last loss that was read."""
        self._skipped, self._spiked = 0, False
        # Reading a loss makes the host wait for a GPU, so there it is done when a row of metrics is due.
        self._reads_every_step = self.process.device.type == "cpu" or config.run.skip_spikes > 0
        self._deterministic = {"on": True, "off": False}.get(
            config.run.deterministic, self.process.device.type == "cpu"
        )

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
        self._put(manifest.step, manifest.state)
        self.resumes += 1
        self._saved = manifest.step if source is None else None
        return True

    def train(self, until: int | None = None, stop: Callable[[], bool] = lambda: False) -> None:
        """Train up to step ``until``, or to the end of the schedule; ``stop`` is called before every step."""
        last = self.config.steps if until is None else min(until, self.config.steps)
        self.model.train()
        locked = run_dir.locked(self.out, self.process.rank)
        with repeatable(self._deterministic), locked, self._open_sinks() as sinks:
            throughput = Throughput(self._flops_per_token(), peak_flops(self.process.device, self.process.dtype))
            title = self.out.name or "training"
            with ProgressLine(self.config.steps, self.step, self.shown and self.process.rank == 0, title) as line:
                while self.step < last and not self.process.any(stop()):
                    row = self.one_step(throughput)
                    line.step(self.step, row)
                    if row is not None:
                        for sink in sinks:
                            sink.write(row)
                    if self._due(self.config.run.checkpoint_every) or self.step == self._trunk_end():
                        for sink in sinks:
                            sink.sync()  # a checkpoint never survives the rows before it
                        self.save()

    def one_step(self, throughput: Throughput) -> dict[str, Any] | None:
        """Do one step; return its row of metrics if one is due."""
        run, step = self.config.run, self.step
        self._validated = None
        factor = rate_factor(self.config.schedule, step, self.config.steps)
        set_rate(self.optimizer, factor)
        seed_step(run.seed, step)
        parts = self.parts(step) if self.process.device.type == "cpu" else self.prefetched(step)
        passes = scheduled_recurrence(self.config.schedule, step, self.config.steps)
        result = gradients(self.model, parts, self.process, self.config.data.document_mask, passes)
        self._unread.append((step, result.loss))
        due = (step + 1) % run.log_every == 0 or step + 1 == self.config.steps
        if due or self._reads_every_step:
            self._read_losses()
        if self._spiked:
            norm = torch.zeros(())
            self.optimizer.zero_grad(set_to_none=True)
        else:
            norm = apply(self.model, self.optimizer, result.counts, self.process, self.config.optimizer.clip)
        self.step += 1
        throughput.add(self.config.step_tokens)
        if not due:
            return None
        measured = StepResult(self._loss, float(norm), float(result.dropped), result.counts)
        return self._row(measured, factor, throughput.read())

    def prefetched(self, step: int) -> list[Batch]:
        """Return the parts of a batch that was made during the step before, and start to make the next one."""
        waiting = self._ahead.pop(step, None)
        parts = self.parts(step) if waiting is None else waiting.result()
        self._ahead = {step + 1: self._maker.submit(self.parts, step + 1)} if step + 1 < self.config.steps else {}
        return parts

    def parts(self, step: int) -> list[Batch]:
        """Return the parts in which this process computes its share of a batch."""
        batch = self.batches.batch(step, rank=self.process.rank, ranks=self.process.ranks)
        rows = len(batch.ids) // self.config.run.accumulate
        if rows * self.config.run.accumulate != len(batch.ids):
            raise InputError(
                f"[run]: a process has {len(batch.ids)} sequences of a batch, which {self.config.run.accumulate} parts "
                "('accumulate') do not divide"
            )
        return [_rows(batch, slice(start, start + rows)) for start in range(0, len(batch.ids), rows)]

    def _row(self, result: StepResult, factor: float, throughput: dict[str, float]) -> dict[str, Any]:
        """Return the row of metrics after a step; the loss is that of its batch."""
        row: dict[str, Any] = {
            "step": self.step,
            "tokens": self.step * self.config.step_tokens,
            "loss": result.loss,
            "gradient_norm": result.norm,
            "learning_rate": self.config.optimizer.learning_rate * factor,
            **throughput,
        }
        if self._skipped:
            row["skipped"] = self._skipped
        if result.counts is not None:
            row |= {"expert_load": _load(result.counts), "dropped": result.dropped}
        if self._due(self.config.run.validate_every) or self.step == self.config.steps:
            row["validation_loss"] = self.validate()
            if self.forecast is not None:
                row |= self.forecast.row(row["tokens"], row["validation_loss"])
        if self._evaluate is not None and (self._due(self.config.run.eval_every) or self.step == self.config.steps):
            with repeatable(self._deterministic):
                row |= {f"eval/{name}": score for name, score in self._evaluate(self.model, self.store).items()}
            self.model.train()
        return row

    def validate(self, recurrence: int | None = None) -> float:
        """Return the loss on the validation split; it is computed once per step."""
        if recurrence is None and self._validated is not None:
            return self._validated
        with repeatable(self._deterministic):
            loss = validation_loss(
                self.model, self.validation, self.config.run.validation_sequences, self.process, recurrence
            )
        if recurrence is None:
            self._validated = loss
        return loss

    def save(self) -> Path:
        """Write a checkpoint of the current step, unless it is already on disk."""
        if self._saved != self.step:
            self._read_losses()
            manifest = Manifest(self.step, self._identity(), self._state())
            self.checkpoints.save(manifest, self.tensors(), protect=self._trunk_end())
            self._saved = self.step
        return self.checkpoints.path(self.step)

    def tensors(self) -> dict[str, Tensor]:
        """Return all state tensors by name."""
        named = [*self.model.named_parameters(), *self.model.named_buffers()]
        weights = {f"model.{name}": tensor.detach() for name, tensor in named}
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
        self._put(step, state)
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
        tensors = self.process.full_state_dict(self.model) if model else {}
        summary = run_dir.summary(self.config, self.model_config, self.step, self.validate()) | facts
        summary |= run_dir.provenance(self.config, self.store, self.resumes)
        if self.forecast is not None:
            summary["forecast"] = self.forecast.summary(summary["validation_loss"])
        if self.process.rank == 0:
            if model:
                save_model(self.out / "model", self.model_config, tensors, self.store)
            write_json(self.out / "summary.json", summary)
        return summary

    def _state(self) -> dict[str, Any]:
        """Return the plain values that ``_put`` reads; JSON has no infinity."""
        return {
            "recent": list(self._recent),
            "lowest": None if math.isinf(self._lowest) else self._lowest,
            "steps": self.config.steps,
            "resumes": self.resumes,
            "skipped": self._skipped,
        }

    def _put(self, step: int, state: dict[str, Any]) -> None:
        """Take over the plain values of a checkpoint; values that an older or damaged one lacks start anew."""
        self.step, self._validated = step, None
        recent, lowest = state.get("recent"), state.get("lowest")
        numbers = [value for value in recent if isinstance(value, float)] if isinstance(recent, list) else []
        self._recent = deque(numbers, maxlen=SMOOTH)
        self._lowest = lowest if isinstance(lowest, float) else math.inf
        resumes = state.get("resumes", 0)
        self.resumes = resumes if isinstance(resumes, int) else 0
        skipped = state.get("skipped", 0)
        self._skipped = skipped if isinstance(skipped, int) else 0
        self._unread.clear()

    def _due(self, every: int) -> bool:
        return bool(every) and self.step % every == 0

    def _trunk_end(self) -> int | None:
        """Return the step whose checkpoint longer "wsd" runs can branch from, if this run writes checkpoints."""
        if self.config.schedule.kind != "wsd" or not self.config.run.checkpoint_every:
            return None
        return cooldown_start(self.config.schedule, self.config.steps)

    def _identity(self) -> dict[str, Any]:
        return run_dir.identity(self.config, self.model_config, self.store)

    @contextmanager
    def _open_sinks(self) -> Iterator[list[Sink]]:
        sinks: list[Sink] = []
        if self.process.rank == 0:
            sinks = open_sinks(self.out, self.step, self.config.run.track, self.config.to_dict())
        try:
            yield sinks
        finally:
            for sink in sinks:
                sink.close()

    def _flops_per_token(self) -> float:
        return run_dir.real_flops_per_token(self.config, self.model_config) / self.process.ranks

    def _checkpoints(self, out: Path) -> Checkpoints:
        return Checkpoints(out / "checkpoints", self.config.run.keep, background=self.config.run.async_checkpoints)

    def _set_activation_memory(self) -> None:
        """Recompute the activations of all blocks, or of as many as the memory for activations needs."""
        run, stored = self.config.run, 0
        if run.activation_memory is None and not run.activation_checkpointing:
            return
        if run.activation_memory is not None:
            sequences = run.batch // run.accumulate // self.process.ranks
            stored = stored_blocks(
                self.model_config, sequences, self.config.data.context, self.process.dtype, run.activation_memory
            )
        self.model.gradient_checkpointing_enable()
        self.model.model.stored_calls = stored

    def _read_losses(self) -> None:
        """Read the losses that are still on the device, and look for spikes and divergence."""
        if not self._unread:
            return
        steps, losses = zip(*self._unread, strict=True)
        self._unread.clear()
        for step, loss in zip(steps, torch.stack(losses).tolist(), strict=True):
            self._loss = loss
            self._spiked = self._is_spike(loss)
            if self._spiked:
                self._skipped += 1
            else:
                self._check_divergence(step, loss)

    def _is_spike(self, loss: float) -> bool:
        """Tell whether a batch is skipped for its loss."""
        run = self.config.run
        if self._skipped >= run.skip_spikes:
            return False
        high = len(self._recent) == SMOOTH and loss > fmean(self._recent) + run.spike
        return high or not math.isfinite(loss)

    def _check_divergence(self, step: int, loss: float) -> None:
        """Stop before the weights are corrupted if the loss is not finite, or has risen and stayed high."""
        self._recent.append(loss)
        mean = fmean(self._recent) if len(self._recent) == SMOOTH else math.inf
        self._lowest = min(self._lowest, mean)
        limit = self.config.run.divergence
        if math.isfinite(loss) and (not limit or math.isinf(mean) or mean <= self._lowest + limit):
            return
        # Every process has its own rows of the batch.
        batch = self.out / ("bad-batch.json" if self.process.ranks == 1 else f"bad-batch-{self.process.rank}.json")
        ids = [part.ids.tolist() for part in self.parts(step)]
        write_json(batch, {"step": step, "loss": str(loss), "ids": ids})
        steps = self.checkpoints.steps()
        good = (
            f"the last good checkpoint is {self.checkpoints.path(steps[0])}"
            if steps
            else "no checkpoint was written yet"
        )
        what = "is not finite" if not math.isfinite(loss) else f"has climbed to {mean:.3f} from {self._lowest:.3f}"
        skipped = f"{self._skipped} batches were skipped before; " if self._skipped else ""
        raise DivergenceError(
            f"{self.out}: the loss {what} at step {step} ({loss:g}); {skipped}its batch is in {batch}; {good}; "
            "lower learning_rate or raise warmup_steps"
        )


def open_batches(config: TrainConfig, store: TokenStore) -> tuple[AnyBatches, AnyBatches]:
    """Return the batches of the training and of the validation split."""
    options: dict[str, Any] = {"batch": config.run.batch, "context": config.data.context, "seed": config.run.seed}
    if isinstance(store, LabelledStore):
        return store.batches(split="train", **options), store.batches(split="validation", shuffle=False, **options)
    if isinstance(store, Mixture):
        mixed = MixedBatches(store, split="train", **options)
        return mixed, MixedBatches(store, split="validation", shuffle=False, **options)
    training = Batches(store, split="train", **options)
    return training, Batches(store, split="validation", shuffle=False, **options)


def train(
    config: TrainConfig,
    out: str | Path,
    *,
    progress: bool = False,
    branch: str | Path | None = None,
    evaluate: Evaluate | None = None,
) -> dict[str, Any] | None:
    """Train a run to its end in the folder ``out``, resuming where an earlier call stopped; return its summary.

    ``branch`` is the folder of another run with the same settings but another length: the new run starts from its
    latest checkpoint that both lengths share. ``evaluate`` returns the scores that ``[run] eval_tasks`` asks for. After
    SIGTERM a checkpoint is written and None is returned.
    """
    summary = run_dir.finished(Path(out), config)
    if summary is not None:
        return summary
    with _sigterm() as terminated:
        trainer = Trainer(config, out, progress=progress, evaluate=evaluate)
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
    shared = shared_steps(config.schedule, min(TrainConfig.from_dict(stored).steps, config.steps))
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


def _rows(batch: Batch, rows: slice) -> Batch:
    return Batch(batch.ids[rows], batch.labels[rows], batch.starts[rows])


def _load(counts: Trace) -> float:
    """Return the load of the busiest expert over the mean, in the layer where it is worst."""
    layers = [*counts.prelude, *counts.loop.sum(0), *counts.coda]
    return max(load_ratio(counts_E) for counts_E in layers)
