"""Many processes train the same model as one: FSDP2, shared experts, checkpoints that go from one world to another."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from parallel_runs import BATCH, CONTEXT, STEPS, TORCHRUN, finish, launch, run, settings, start, write_text
from training import losses

from loopscale.core.errors import InputError
from loopscale.model.loading import load_model
from loopscale.train.config import TrainConfig
from loopscale.train.metrics import read_metrics
from loopscale.train.parallel.process import ParallelProcess, this_process
from loopscale.train.step import gradients
from loopscale.train.trainer import Trainer

Sections = dict[str, dict[str, Any]]
Reference = Callable[[Sections], Path]

PADDED: Sections = {"model": {"dispatch": "drop-and-pad", "capacity_factor": 1.0}}
SUPERVISED: Sections = {"model": {"loop_loss_weights": [0.5, 1.0]}}
BF16: Sections = {"run": {"precision": "bf16", "tokens": 20 * BATCH * CONTEXT}}
LIGHT: Sections = {"run": {"activation_checkpointing": True}}
KINDS: dict[str, Sections] = {"dropless": {}, "padded": PADDED, "light": LIGHT, "bf16": BF16}
SHARED: Sections = {"parallel": {"experts": 2}}
WAYS: dict[str, Sections] = {
    "pass": {"parallel": {"reduce": "pass"}},
    "block": {"parallel": {"reduce": "block"}},
    "replicas": {"parallel": {"replicas": 2}},
    "offload": {"parallel": {"offload": True}},
    "offload-pass": {"parallel": {"offload": True, "reduce": "pass"}},
    "parts": {"run": {"accumulate": 2}},
    "parts-pass": {"run": {"accumulate": 2}, "parallel": {"reduce": "pass"}},
}
AVERAGED: Sections = {"optimizer": {"name": "muon"}, "run": {"ema": 0.9}}
COMPILED: Sections = {"run": {"compile": True}}
ODD: Sections = {"model": {"width": 24, "head_size": 8, "experts": 3, "active_experts": 3}}
"""Nine experts, which two processes shard along their matrices."""
SWITCHED: dict[str, dict[str, Any]] = {
    "own parts, gated injection, exit gate": {
        "pass_norms": True,
        "pass_attention": "low-rank",
        "pass_router": True,
        "injection": "gated",
        "exit_gate": True,
        "random_recurrence": "uniform",
    },
    "own attention, diagonal injection, truncated": {
        "pass_attention": "full",
        "injection": "diagonal",
        "residual_scale": "1/R",
        "backprop_passes": 1,
    },
    "normed injection": {"injection": "normed"},
}
"""Recipe switches, by a name without a slash."""
HALF = STEPS // 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parallel")


@pytest.fixture(scope="module")
def text(folder: Path) -> Path:
    return write_text(folder / "text")


@pytest.fixture(scope="module")
def alone(folder: Path, text: Path) -> Reference:
    """Return a function that gives the folder of a run trained by one process; each is trained once."""

    def train(sections: Sections) -> Path:
        out = folder / f"one-{abs(hash(json.dumps(sections, sort_keys=True)))}"
        run(settings(text, **sections), str(out))
        return out

    return train


@pytest.fixture(scope="module")
def two(folder: Path, text: Path) -> Path:
    """Runs of two processes, some to their end and some to a checkpoint at half of it."""
    run(settings(text), str(folder / "half-of-one"), HALF)
    shutil.copytree(folder / "half-of-one", folder / "two" / "from-one")
    runs = [each("two", f"{kind}-split", sections, text, folder) for kind, sections in KINDS.items()]
    runs += [each("two", f"{kind}-shared", {**sections, **SHARED}, text, folder) for kind, sections in KINDS.items()]
    runs += [each("two", f"way-{way}", sections, text, folder) for way, sections in WAYS.items()]
    runs += [each("two", "supervised", SUPERVISED, text, folder), each("two", "from-one", {}, text, folder)]
    runs += [each("two", "odd", ODD, text, folder), each("two", "averaged", AVERAGED, text, folder)]
    runs += [each("two", "half", {}, text, folder, HALF), each("two", "half-shared", SHARED, text, folder, HALF)]
    launch(2, [*runs, {"counted": settings(text), "out": str(folder / "two" / "collectives.json")}], folder)
    return folder / "two"


@pytest.fixture(scope="module")
def four(folder: Path, text: Path, two: Path) -> Path:
    """Runs of four processes: two replicas of two that share the experts; and runs that two processes began."""
    for name in ("half", "half-shared"):
        shutil.copytree(two / name, folder / "four" / name)
    runs = {"dropless": SHARED, "padded": {**PADDED, **SHARED}, "half": {}, "half-shared": {"parallel": {"experts": 4}}}
    runs |= {"split": {}, "block": WAYS["block"], "compiled": COMPILED, "compiled-shared": {**COMPILED, **SHARED}}
    listed = [each("four", name, sections, text, folder) for name, sections in runs.items()]
    launch(4, [*listed, each("four", "quarter", SHARED, text, folder, HALF)], folder)
    return folder / "four"


def each(
    world: str, name: str, sections: Sections, text: Path, folder: Path, until: int | None = None
) -> dict[str, Any]:
    return {"config": settings(text, **sections), "out": str(folder / world / name), "until": until}


def furthest(one: Path, other: Path) -> float:
    """Return the largest difference of two runs' losses at the same step."""
    assert len(losses(one)) == len(losses(other)) > 0
    return max(abs(a - b) for a, b in zip(losses(one), losses(other), strict=True))


@pytest.mark.parametrize("how", ["split", "shared"])
def test_two_processes_have_the_losses_of_one(two: Path, alone: Reference, how: str) -> None:
    found, expected = two / f"dropless-{how}", alone({})
    assert furthest(found, expected) < 1e-5
    rows = zip(read_metrics(found / "metrics.jsonl"), read_metrics(expected / "metrics.jsonl"), strict=True)
    for row, other in rows:
        assert row["gradient_norm"] == pytest.approx(other["gradient_norm"], abs=1e-3)
        assert row["expert_load"] == other["expert_load"]
    assert row["validation_loss"] == pytest.approx(other["validation_loss"], abs=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_reduce_gradients_gives_the_same_losses(two: Path, alone: Reference, way: str) -> None:
    assert furthest(two / f"way-{way}", alone({})) < 1e-5


def test_experts_that_processes_cannot_share_equally_give_the_same_losses(two: Path, alone: Reference) -> None:
    assert furthest(two / "odd", alone(ODD)) < 1e-5


def test_muon_and_averaged_weights_are_the_same_on_two_processes(two: Path, alone: Reference) -> None:
    assert furthest(two / "averaged", alone(AVERAGED)) < 1e-4
    ends = [read_metrics(run / "metrics.jsonl")[-1]["validation_loss"] for run in (two / "averaged", alone(AVERAGED))]
    assert ends[0] == pytest.approx(ends[1], abs=1e-4)


@pytest.mark.parametrize("how", ["split", "shared"])
def test_drop_and_pad_keeps_by_what_each_process_has(two: Path, alone: Reference, how: str) -> None:
    """Capacity is that of a process's own rows: one process has the same when it takes the batch in two parts."""
    expected = alone({**PADDED, "run": {"accumulate": 2}})
    assert furthest(two / f"padded-{how}", expected) < 1e-4
    assert max(row["dropped"] for row in read_metrics(expected / "metrics.jsonl")) > 0


@pytest.mark.slow
def test_four_processes_in_two_groups_of_two_have_the_losses_of_one(four: Path, alone: Reference) -> None:
    assert furthest(four / "dropless", alone({})) < 1e-5
    assert furthest(four / "padded", alone({**PADDED, "run": {"accumulate": 4}})) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["split", "block", "compiled", "compiled-shared"])
def test_four_processes_compiled_or_not_have_the_losses_of_one(four: Path, alone: Reference, name: str) -> None:
    assert furthest(four / name, alone({})) < 1e-5


def test_the_whole_loss_at_once_gives_the_same_losses(
    alone: Reference, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = alone({})
    monkeypatch.setattr("loopscale.model.losses.CHUNK", 1 << 40)
    whole = tmp_path / "whole"
    run(settings(text), str(whole))
    monkeypatch.setattr("loopscale.model.losses.CHUNK", 1000)
    chunked = tmp_path / "chunked"
    run(settings(text), str(chunked))
    assert losses(chunked) != losses(whole)
    assert furthest(chunked, whole) < 1e-5
    assert furthest(expected, whole) < 1e-5


def test_per_loop_supervision_is_the_same_on_two_processes(two: Path, alone: Reference) -> None:
    assert furthest(two / "supervised", alone(SUPERVISED)) < 1e-4


@pytest.mark.slow
def test_recipe_switches_are_the_same_on_two_processes(folder: Path, text: Path, alone: Reference) -> None:
    short = {"tokens": 20 * BATCH * CONTEXT}
    runs: dict[str, Sections] = {name: {"model": model, "run": short} for name, model in SWITCHED.items()}
    shared = {f"shared {name}": {**sections, **SHARED} for name, sections in runs.items()}
    launch(2, [each("switched", name, sections, text, folder) for name, sections in (runs | shared).items()], folder)
    for name, sections in runs.items():
        for found in (name, f"shared {name}"):
            assert furthest(folder / "switched" / found, alone(sections)) < 1e-4, found


def test_activation_checkpointing_changes_no_loss_and_counts_no_expert_twice(
    two: Path, alone: Reference, text: Path, tmp_path: Path
) -> None:
    expected = alone({})
    for found in (alone(LIGHT), two / "light-split", two / "light-shared"):
        assert furthest(found, expected) < 1e-4
    trainer = Trainer(TrainConfig.from_dict(settings(text, **LIGHT)), tmp_path)
    trainer.model.train()
    counts = gradients(trainer.model, [trainer.batches.batch(0)], trainer.process, document_mask=False).counts
    assert counts is not None
    chosen = BATCH * CONTEXT * 2  # of each layer, at each pass
    assert [int(part.sum()) for part in counts] == [chosen, 2 * 2 * chosen, chosen]


def test_one_gather_and_one_reduction_serve_all_passes(two: Path) -> None:
    counted = json.loads((two / "collectives.json").read_text())
    assert counted["4"] == counted["1"]
    # Prelude and coda are gathered for forward and again for backward, the loop's two blocks and the root once.
    assert counted["1"] == {"gathered": 2 + 2 + 1 + 1, "reduced": 1 + 1 + 1 + 1}


def test_bf16_stays_near_fp32(two: Path, alone: Reference) -> None:
    expected = alone({"run": {"tokens": 20 * BATCH * CONTEXT}})
    for found in (alone(BF16), two / "bf16-split", two / "bf16-shared"):
        assert furthest(found, expected) < 0.05
        assert losses(found) != losses(expected)
        kept = load_model(found / "model").state_dict()
        assert {tensor.dtype for tensor in kept.values()} == {torch.float32}


def test_a_checkpoint_goes_from_one_process_to_two_and_back(
    two: Path, alone: Reference, text: Path, folder: Path
) -> None:
    assert furthest(two / "from-one", alone({})) < 1e-4
    for begun in (two / "half", two / "half-shared"):
        assert furthest(continued_alone(begun, text, folder), alone({})) < 1e-4


@pytest.mark.slow
def test_a_checkpoint_goes_from_two_processes_to_four_and_from_four_to_one(
    four: Path, alone: Reference, text: Path, folder: Path
) -> None:
    for found in (four / "half", four / "half-shared", continued_alone(four / "quarter", text, folder)):
        assert furthest(found, alone({})) < 1e-4


def continued_alone(begun: Path, text: Path, folder: Path) -> Path:
    """Return a run that one process finished from the checkpoint that others wrote half way."""
    out = folder / f"one-from-{begun.parent.name}-{begun.name}"
    shutil.copytree(begun, out)
    assert len(losses(out)) == HALF
    run(settings(text), str(out))
    return out


def test_the_export_is_that_of_one_process(two: Path, alone: Reference) -> None:
    expected = alone({}) / "model"
    for found in (two / "dropless-split" / "model", two / "dropless-shared" / "model"):
        assert sorted(each.name for each in found.iterdir()) == sorted(each.name for each in expected.iterdir())
        assert (found / "config.json").read_bytes() == (expected / "config.json").read_bytes()
        tensors, others = load_model(found).state_dict(), load_model(expected).state_dict()
        assert tensors.keys() == others.keys()
        for name, tensor in tensors.items():
            torch.testing.assert_close(tensor, others[name], atol=1e-3, rtol=0)


def test_a_killed_process_is_started_again_and_training_goes_on(text: Path, folder: Path, alone: Reference) -> None:
    out = folder / "killed"
    toml = _toml(folder / "killed.toml", settings(text, run={"checkpoint_every": 5}))
    begun = start([*torchrun("--max-restarts", "1"), str(toml), "--out", str(out), "--quiet"], folder)
    while begun.poll() is None and not (out / "checkpoints" / "step-10").is_dir():
        time.sleep(0.01)
    os.kill(_child(begun.pid, rank=1), signal.SIGKILL)
    code, said, errors = finish(begun)
    assert code == 0, errors[-4000:]
    assert "Signal 9" in errors or "SIGKILL" in errors or "exitcode: -9" in errors
    assert said.count("Saved ") == 1
    assert furthest(out, alone({})) < 1e-4


def torchrun(*options: str) -> list[str]:
    """Return the command as a user gives it, for two processes."""
    return [*TORCHRUN, "--standalone", "--nproc-per-node", "2", *options, "-m", "loopscale.train"]


def _child(parent: int, rank: int) -> int:
    """Return the process that torchrun started as ``rank``."""
    for found in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if f"RANK={rank}".encode() in Path(f"/proc/{found}/environ").read_bytes().split(b"\0"):
            return int(found)
    raise AssertionError(f"no process of rank {rank}")


def _toml(path: Path, sections: dict[str, Any]) -> Path:
    lines = [
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        for name, table in sections.items()
    ]
    path.write_text("\n".join(lines))
    return path


def test_experts_that_the_group_cannot_divide_are_refused(text: Path, tmp_path: Path) -> None:
    process = ParallelProcess(torch.device("cpu"), ranks=3, group=3)
    with pytest.raises(InputError, match="'experts' is 3, which does not divide the 8 experts of a layer"):
        Trainer(TrainConfig.from_dict(settings(text)), tmp_path, process=process)


@pytest.mark.slow
def test_two_processes_say_an_error_once(text: Path, folder: Path) -> None:
    toml = _toml(folder / "odd.toml", settings(text, run={"batch": 5}))
    code, said, errors = finish(start([*torchrun(), str(toml), "--out", "odd"], folder))
    assert code != 0
    assert not said
    sentence = "loopscale: [run]: field 'batch' is 5, which 2 processes cannot share equally; give a multiple of 2"
    assert errors.count(sentence) == 1
    assert "most recent call last" not in errors[: errors.index(sentence)]


@pytest.mark.slow
def test_experts_are_cut_again_where_replicas_do_not_divide_the_matrices(
    text: Path, folder: Path, tmp_path: Path
) -> None:
    """Three replicas of two: matrices of 16 rows do not divide by three."""
    sections: Sections = {"run": {"batch": 12, "tokens": 10 * 12 * CONTEXT}}
    run(settings(text, **sections), str(tmp_path / "one"))
    shared = settings(text, **sections, **SHARED)
    launch(6, [{"config": shared, "out": str(tmp_path / "six"), "until": 5}], tmp_path)
    assert losses(tmp_path / "six") == pytest.approx(losses(tmp_path / "one")[:5], abs=1e-4)
    run(settings(text, **sections), str(tmp_path / "six"))
    assert furthest(tmp_path / "six", tmp_path / "one") < 1e-4


@pytest.mark.parametrize(
    ("processes", "sections", "sentence"),
    [
        (3, {}, "'batch' is 8, which 3 processes cannot share equally; give a multiple of 3"),
        (2, {"run": {"accumulate": 8}}, "2 processes in 8 parts each .* give a multiple of 16"),
        (4, {"parallel": {"experts": 3}}, "'experts' is 3, but 4 processes cannot form groups of 3"),
        (1, {"parallel": {"experts": 2}}, "1 process cannot form groups of 2; start a multiple of 2 with torchrun"),
    ],
)
def test_what_processes_cannot_share_is_said_in_one_sentence(
    text: Path, monkeypatch: pytest.MonkeyPatch, processes: int, sections: Sections, sentence: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(InputError, match=sentence):
        this_process(TrainConfig.from_dict(settings(text, **sections)))


def test_a_backend_that_is_missing_is_said_in_one_sentence(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_gloo_available", lambda: False)
    with pytest.raises(InputError, match="this build of torch has no 'gloo'"):
        this_process(TrainConfig.from_dict(settings(text, **BF16)))
