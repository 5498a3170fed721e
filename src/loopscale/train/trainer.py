"""A run: made or resumed, trained, validated, exported.

Everything that happens at a step is a function of the run's seed and the step: the batch, the learning rate, what is
drawn at random. So a run that was killed and goes on from a checkpoint is, bit for bit, the run that was not.
"""

from __future__ import annotations

import math
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from loopscale.errors import InputError
from loopscale.files import write_json
from loopscale.model import LoopedMoEConfig, LoopedMoEForCausalLM
from loopscale.model.balancing import load_ratio
from loopscale.model.forward import Trace
from loopscale.model.loading import quiet
from loopscale.train import run_dir
from loopscale.train.checkpoints import Checkpoints, Manifest, on_disk
from loopscale.train.config import TrainConfig
from loopscale.train.data.batches import Batch, Batches
from loopscale.train.data.token_store import TokenStore
from loopscale.train.metrics import Sink, Watch, open_sinks
from loopscale.train.parallel.process import Process, this_process
from loopscale.train.step import (
    StepResult,
    apply,
    build_optimizer,
    fill_state,
    gradients,
    named_state,
    rate_factor,
    repeatable,
    seed_step,
    set_rate,
)

RESIDUAL = ("o_proj.weight", "down_proj.weight", "down_proj")
"""The matrices that write to the residual stream."""


def new_model(config: LoopedMoEConfig, seed: int, residual_init: str) -> LoopedMoEForCausalLM:
    """Return a fresh model; the same seed gives models of equal shape the same draws, whatever their recurrence."""
    torch.manual_seed(seed)
    model = LoopedMoEForCausalLM(config)
    if residual_init != "none":
        passes = config.recurrence if residual_init == "unrolled" else 1
        depth = config.prelude_layers + passes * config.loop_layers + config.coda_layers
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith(RESIDUAL):
                    weight.mul_(1 / math.sqrt(2 * depth))
    return model


@torch.no_grad()
def validation_loss(
    model: LoopedMoEForCausalLM, batches: Batches, sequences: int, process: Process, recurrence: int | None = None
) -> float:
    """Return the mean loss over the first ``sequences`` of a split, at the model's recurrence or another."""
    was = model.training
    model.eval()  # type: ignore[no-untyped-call]
    steps = min(batches.steps_per_epoch, -(-sequences // batches.size))
    sums = torch.zeros(2, dtype=torch.float64, device=process.device)
    for step in range(steps):
        part = batches.batch(step, rank=process.rank, ranks=process.ranks)
        ids, labels = (torch.from_numpy(each).to(process.device) for each in (part.ids, part.labels))
        # Every process runs every step, targets or none: sharded models gather their weights together.
        loss = model(ids, labels=labels, use_cache=False, recurrence=recurrence).loss
        if part.targets:
            sums += torch.stack([loss.double() * part.targets, sums.new_tensor(float(part.targets))])
    model.train(was)
    total, targets = process.total(sums).tolist()
    return float(total / targets)


@cache
def matmul_peak(device: torch.device, dtype: torch.dtype, size: int = 768) -> float:
    """Return the FLOP/s of a large matrix product on this device, the best of a few: the measured peak."""
    a, b = torch.randn(2, size, size, device=device).to(dtype)
    best = float("inf")
    for _ in range(8):
        start = time.perf_counter()
        torch.mm(a, b)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


class Meter:
    """Tokens and FLOPs since the last reading."""

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
        """Return the speed since the last reading, and begin a new one."""
        rate = self._tokens / max(time.perf_counter() - self._since, 1e-9)
        self.start()
        flops = rate * self._flops
        return {"tokens_per_second": rate, "flops_per_second": flops, "peak_share": flops / self._peak}


def save_model(target: Path, config: LoopedMoEConfig, tensors: dict[str, Tensor], store: TokenStore) -> None:
    """Write the model whole or not at all."""
    temporary = target.with_name(f".{target.name}.partial")
    with on_disk(target), quiet():
        shutil.rmtree(temporary, ignore_errors=True)
        model = LoopedMoEForCausalLM(config)
        model.load_state_dict({name: tensor.cpu() for name, tensor in tensors.items()})
        model.save_pretrained(str(temporary))
        store.tokenizer().save_pretrained(str(temporary))
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)


SMOOTH = 50
"""Steps that the loss is averaged over before it is called diverging."""
SHAPES = 64
"""Kinds of block that one process compiles before it goes on without compiling: a sweep's worker meets many."""


class Trainer:
    """One run in its folder."""

    def __init__(
        self, config: TrainConfig, out: str | Path, *, process: Process | None = None, progress: bool = False
    ) -> None:
        self.config, self.out, self.shown = config, Path(out), progress
        self.process = this_process(config) if process is None else process
        self.store = run_dir.open_tokens(config, progress and self.process.rank == 0)
        self.model_config: LoopedMoEConfig = run_dir.model_config(config, self.store)
        context, seed = config.data.context, config.run.seed
        self.batches = Batches(self.store, split="train", batch=config.run.batch, context=context, seed=seed)
        self.validation = Batches(
            self.store, split="validation", batch=config.run.batch, context=context, seed=seed, shuffle=False
        )
        run_dir.open_run(self.out, config, self.process.rank)
        self.model = self.process.prepare(new_model(self.model_config, seed, config.model.residual_init))
        if config.run.activation_checkpointing:
            self.model.gradient_checkpointing_enable()
        if config.run.compile:
            for block in (*self.model.model.prelude, *self.model.model.loop, *self.model.model.coda):
                block.compile(dynamic=False, recompile_limit=SHAPES)
        self.optimizer = build_optimizer(
            self.model, config.optimizer, self.model_config.hidden_size, self.model_config.recurrence
        )
        fill_state(self.optimizer)
        self.checkpoints = Checkpoints(self.out / "checkpoints", config.run.keep)
        self.step = 0
        self._recent: deque[float] = deque(maxlen=SMOOTH)
        self._lowest = math.inf
        self._validated: float | None = None

    def resume(self, *, at: int | None = None, latest: int | None = None) -> bool:
        """Go on from the latest whole checkpoint, if there is one; tell whether there was.

        ``at`` names the step, and ``latest`` the last that will do.
        """
        manifest = self.checkpoints.load(self._identity(), self.tensors(), at=at, latest=latest)
        if manifest is None:
            return False
        self._put(manifest.step, manifest.state)
        return True

    @repeatable()
    def train(self, until: int | None = None, stop: Callable[[], bool] = lambda: False) -> None:
        """Train up to step ``until``, or to the end of the schedule; ``stop`` is asked before every step."""
        last = self.config.steps if until is None else min(until, self.config.steps)
        self.model.train()
        sinks = self._sinks()
        meter = Meter(self._flops_per_token(), matmul_peak(self.process.device, self.process.dtype))
        title = self.out.name or "training"
        try:
            with Watch(self.config.steps, self.step, self.shown and self.process.rank == 0, title) as watch:
                while self.step < last and not stop():
                    row = self._one_step(meter)
                    watch.step(self.step, row)
                    if row is not None:
                        for sink in sinks:
                            sink.write(row)
                    if self._due(self.config.run.checkpoint_every):
                        self.save()
        finally:
            for sink in sinks:
                sink.close()

    def _one_step(self, meter: Meter) -> dict[str, Any] | None:
        """Do a step; return its row if one is due."""
        run, step = self.config.run, self.step
        self._validated = None
        factor = rate_factor(self.config.schedule, step, self.config.steps)
        set_rate(self.optimizer, factor)
        seed_step(run.seed, step)
        parts = self._parts(step)
        result = gradients(self.model, parts, self.process, self.config.data.separate)
        self._refuse_divergence(result, parts)
        norm = apply(self.model, self.optimizer, result.counts, self.process, self.config.optimizer.clip)
        self.step += 1
        meter.add(self.config.step_tokens)
        if not self._due(run.log_every) and self.step != self.config.steps:
            return None
        return self._row(replace(result, norm=float(norm)), factor, meter.read())

    def _parts(self, step: int) -> list[Batch]:
        whole = self.batches.batch(step, rank=self.process.rank, ranks=self.process.ranks)
        rows = len(whole.ids) // self.config.run.accumulate
        if rows * self.config.run.accumulate != len(whole.ids):
            raise InputError(
                f"[run]: a process has {len(whole.ids)} sequences of a batch, which {self.config.run.accumulate} parts "
                "('accumulate') do not divide"
            )
        return [_rows(whole, slice(start, start + rows)) for start in range(0, len(whole.ids), rows)]

    def _row(self, result: StepResult, factor: float, speed: dict[str, float]) -> dict[str, Any]:
        """Return what is known after a step; the loss is that of its batch."""
        row: dict[str, Any] = {
            "step": self.step,
            "tokens": self.step * self.config.step_tokens,
            "loss": result.loss,
            "gradient_norm": result.norm,
            "learning_rate": self.config.optimizer.learning_rate * factor,
            **speed,
        }
        if result.counts is not None:
            row |= {"expert_load": _load(result.counts), "dropped": result.dropped}
        if self._due(self.config.run.validate_every) or self.step == self.config.steps:
            row["validation_loss"] = self.validate()
        return row

    @repeatable()
    def validate(self, recurrence: int | None = None) -> float:
        """Return the loss on the validation split; it is computed once for each moment of the run."""
        if recurrence is None and self._validated is not None:
            return self._validated
        loss = validation_loss(
            self.model, self.validation, self.config.run.validation_sequences, self.process, recurrence
        )
        if recurrence is None:
            self._validated = loss
        return loss

    def save(self) -> Path:
        """Write a checkpoint of this moment."""
        return self.checkpoints.save(Manifest(self.step, self._identity(), self._state()), self.tensors())

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor that the run's future hangs on, by name."""
        named = [*self.model.named_parameters(), *self.model.named_buffers()]
        found = {f"model.{name}": tensor.detach() for name, tensor in named}
        return found | {f"optimizer.{name}": value for name, value in named_state(self.model, self.optimizer)}

    def snapshot(self) -> tuple[int, dict[str, Any], dict[str, Tensor]]:
        """Return this moment, to come back to with ``restore``."""
        return self.step, self._state(), {name: tensor.clone() for name, tensor in self.tensors().items()}

    @torch.no_grad()
    def restore(self, moment: tuple[int, dict[str, Any], dict[str, Tensor]]) -> None:
        """Go back to a moment."""
        step, state, kept = moment
        for name, tensor in self.tensors().items():
            tensor.copy_(kept[name])
        self._put(step, state)

    @contextmanager
    def branch(self, tokens: float, out: Path) -> Iterator[None]:
        """Be, within the block, the run of ``tokens`` that shares this one's past, in a folder of its own."""
        moment, trunk = self.snapshot(), (self.config, self.out, self.checkpoints)
        self.config = self.config.changed(run={"tokens": tokens})
        self.out, self.checkpoints = out, Checkpoints(out / "checkpoints", self.config.run.keep)
        try:
            run_dir.open_run(out, self.config, self.process.rank)
            yield
        finally:
            self.config, self.out, self.checkpoints = trunk
            self.restore(moment)

    def finish(self, *, model: bool = True, **facts: Any) -> dict[str, Any]:
        """Export the model in Hugging Face form, if wanted; write ``summary.json``, ``facts`` added, and return it."""
        tensors = self.process.whole(self.model) if model else {}
        summary = run_dir.summary(self.config, self.model_config, self.step, self.validate()) | facts
        if self.process.rank == 0:
            if model:
                save_model(self.out / "model", self.model_config, tensors, self.store)
            write_json(self.out / "summary.json", summary)
        return summary

    def _state(self) -> dict[str, Any]:
        """Return the plain values that ``_put`` takes back; JSON has no infinity."""
        return {"recent": list(self._recent), "lowest": None if math.isinf(self._lowest) else self._lowest}

    def _put(self, step: int, state: dict[str, Any]) -> None:
        self.step, self._validated = step, None
        self._recent = deque(state["recent"], maxlen=SMOOTH)
        self._lowest = math.inf if state["lowest"] is None else state["lowest"]

    def _due(self, every: int) -> bool:
        return bool(every) and self.step % every == 0

    def _identity(self) -> dict[str, Any]:
        return run_dir.identity(self.config, self.model_config, self.store)

    def _sinks(self) -> list[Sink]:
        if self.process.rank:
            return []
        return open_sinks(self.out, self.step, self.config.run.track, self.config.to_dict())

    def _flops_per_token(self) -> float:
        architecture = self.model_config.to_architecture()
        return float(architecture.real_train_flops_per_token(context=self.config.data.context)) / self.process.ranks

    def _refuse_divergence(self, result: StepResult, parts: list[Batch]) -> None:
        """Stop before the weights are spoilt: on a loss that is no number, or one that climbs and stays up."""
        self._recent.append(result.loss)
        mean = fmean(self._recent) if len(self._recent) == SMOOTH else math.inf
        self._lowest = min(self._lowest, mean)
        limit = self.config.run.divergence
        if math.isfinite(result.loss) and (not limit or math.isinf(mean) or mean <= self._lowest + limit):
            return
        # Every process has its own rows of the batch.
        where = self.out / ("bad-batch.json" if self.process.ranks == 1 else f"bad-batch-{self.process.rank}.json")
        write_json(where, {"step": self.step, "loss": str(result.loss), "ids": [part.ids.tolist() for part in parts]})
        kept = self.checkpoints.steps()
        good = (
            f"the last good checkpoint is {self.checkpoints.path(kept[0])}" if kept else "no checkpoint was written yet"
        )
        what = (
            "is not finite" if not math.isfinite(result.loss) else f"has climbed to {mean:.3f} from {self._lowest:.3f}"
        )
        raise InputError(
            f"{self.out}: the loss {what} at step {self.step} ({result.loss:g}); its batch is in {where}; {good}; "
            "lower learning_rate or raise warmup_steps"
        )


def train(config: TrainConfig, out: str | Path, *, progress: bool = False) -> dict[str, Any]:
    """Train a run to its end in the folder ``out``, going on where an earlier call stopped; return its summary."""
    done = run_dir.finished(Path(out), config)
    if done is not None:
        return done
    trainer = Trainer(config, out, progress=progress)
    try:
        trainer.resume()
        trainer.train()
        trainer.save()
        return trainer.finish()
    finally:
        trainer.process.close()


def _rows(batch: Batch, rows: slice) -> Batch:
    return Batch(batch.ids[rows], batch.labels[rows], batch.starts[rows])


def _load(counts: Trace) -> float:
    """Return the busiest expert's load over the mean, in the layer where it is worst."""
    layers = [*counts.prelude, *counts.loop.sum(0), *counts.coda]
    return max(load_ratio(counts_E) for counts_E in layers)
