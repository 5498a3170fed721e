"""Callbacks: called in order, kept in checkpoints, added from Python, from a settings file and by a new file."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from training import small

from loopscale.cli.verbs import cli
from loopscale.core.errors import InputError
from loopscale.core.files import read_json, write_json
from loopscale.train import callbacks as package
from loopscale.train.callbacks import Callback, own_callbacks
from loopscale.train.callbacks.loss_watch import LossWatch
from loopscale.train.callbacks.progress_line import ProgressLine, describe
from loopscale.train.config import TrainConfig
from loopscale.train.metrics import read_metrics
from loopscale.train.trainer import Trainer, train

STEP = 4 * 32


class Journal(Callback):
    """Notes what the loop calls, and counts steps over resumes."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.steps = 0

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")

    def skip_update(self, gradients: Any) -> bool:
        self.calls.append(f"gradients {self.trainer.step}")
        return False

    def after_update(self, gradients: Any) -> None:
        self.calls.append(f"update {self.trainer.step}")

    def measure(self, row: dict[str, Any], gradients: Any) -> None:
        row["steps_seen"] = self.steps + 1

    def report(self, row: dict[str, Any]) -> None:
        self.calls.append(f"row {row['step']}")

    def after_step(self) -> None:
        self.steps += 1
        self.calls.append(f"step {self.trainer.step}")

    def before_save(self) -> None:
        self.calls.append(f"save {self.trainer.step}")

    def summarise(self, summary: dict[str, Any]) -> None:
        summary["steps_seen"] = self.steps

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state.get("steps", 0)


def test_the_loop_calls_a_callback_in_order(text: Path, tmp_path: Path) -> None:
    journal = Journal()
    run = {"tokens": 4 * STEP, "log_every": 2, "checkpoint_every": 3}
    train(small(text, run=run), tmp_path / "run", callbacks=[journal])
    assert journal.calls == [
        *("start", "gradients 0", "update 0", "step 1", "gradients 1", "update 1", "row 2", "step 2"),
        *("gradients 2", "update 2", "step 3", "save 3", "gradients 3", "update 3", "row 4", "step 4"),
        *("stop", "save 4"),
    ]  # fmt: skip


def test_the_state_of_a_callback_is_in_the_checkpoint(text: Path, tmp_path: Path) -> None:
    config = small(text, run={"tokens": 8 * STEP})
    Trainer(config, tmp_path / "run", callbacks=[Journal(), Journal()]).train(until=5)  # the checkpoint is of step 3
    summary = train(config, tmp_path / "run", callbacks=[Journal(), Journal()])
    assert summary is not None
    assert summary["steps_seen"] == 8
    assert [row["steps_seen"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")] == list(range(1, 9))


def test_a_callback_that_is_given_replaces_our_own_of_its_class(text: Path, tmp_path: Path) -> None:
    watch = LossWatch()
    trainer = Trainer(small(text), tmp_path / "run", callbacks=[watch])
    assert [callback for callback in trainer.callbacks if isinstance(callback, LossWatch)] == [watch]


def test_a_skipped_update_leaves_the_weights(text: Path, tmp_path: Path) -> None:
    class Skip(Callback):
        def skip_update(self, gradients: Any) -> bool:
            return True

    trainer = Trainer(small(text), tmp_path / "run", callbacks=[Skip()])
    before = {name: tensor.clone() for name, tensor in trainer.tensors().items()}
    trainer.train(until=2)
    assert all(tensor.equal(before[name]) for name, tensor in trainer.tensors().items())


MODULE = """
from pathlib import Path
from loopscale.train.callbacks import Callback

Path("imported").touch()

class Scale(Callback):
    def __init__(self, factor=1.0):
        self.factor = factor

    def measure(self, row, gradients):
        row["scaled"] = self.factor * row["loss"]
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "scaling_of_mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield "scaling_of_mine:Scale"
    sys.modules.pop("scaling_of_mine", None)


def with_callback(text: Path, **entry: Any) -> TrainConfig:
    return TrainConfig.from_dict(small(text, run={"tokens": 2 * STEP}).to_dict() | {"callbacks": [entry]})


def test_a_settings_file_names_a_callback_with_its_options(text: Path, tmp_path: Path, own_module: str) -> None:
    config = with_callback(text, use=own_module, factor=2.0)
    assert TrainConfig.from_dict(config.to_dict()) == config
    assert config.to_dict()["callbacks"] == [{"use": own_module, "factor": 2.0}]
    train(config, tmp_path / "run", allow_code=True)
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["scaled"] for row in rows] == [2 * row["loss"] for row in rows]


def test_code_from_a_settings_file_runs_only_where_it_is_asked_for(text: Path, tmp_path: Path, own_module: str) -> None:
    with pytest.raises(InputError, match=r"\[\[callbacks\]\] 1: scaling_of_mine:Scale is code .* give `allow_code`"):
        train(with_callback(text, use=own_module), tmp_path / "run")
    toml = tmp_path / "run.toml"
    toml.write_text(
        f'[model]\nwidth = 16\nhead_size = 8\n[data]\nfiles = ["{text}"]\ncontext = 32\nvalidation = 0.2\n'
        f'[run]\ntokens = 256\nbatch = 4\n[[callbacks]]\nuse = "{own_module}"\nfactor = 3\n'
    )
    refused = CliRunner().invoke(cli, ["train", str(toml), "--quiet"])
    assert "give --allow-code" in str(refused.exception)
    assert not (tmp_path / "imported").exists()
    assert not (tmp_path / "runs").exists()
    allowed = CliRunner().invoke(cli, ["train", str(toml), "--allow-code"])
    assert allowed.exit_code == 0, allowed.output
    assert "--allow-code: runs the code of scaling_of_mine:Scale" in allowed.output
    assert (tmp_path / "imported").exists()


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"use": "LosWatch"}, r"field 'use' is 'LosWatch' \(did you mean 'LossWatch'\?\)"),
        ({"use": "LossWatch", "limit": 3}, "LossWatch does not take these options: .*'limit'"),
        ({"use": "not_there:Any"}, "there is no module 'not_there'"),
        ({"use": "json:Missing"}, "the module 'json' has no 'Missing'"),
        ({"use": "json:dumps"}, r"json:dumps is not a subclass of loopscale\.train\.callbacks\.Callback"),
    ],
)
def test_a_callback_that_cannot_be_made_is_refused_by_its_number(
    text: Path, tmp_path: Path, entry: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=rf"\[\[callbacks\]\] 1: {said}"):
        Trainer(with_callback(text, **entry), tmp_path / "run", allow_code=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("use", ["", "a b", "os:", ":x", "a:b:c", "../x:y", 3])
def test_a_name_that_is_no_name_is_refused(text: Path, use: object) -> None:
    with pytest.raises(InputError, match="field 'use'"):
        with_callback(text, use=use)


def test_a_new_file_in_the_package_is_a_new_callback(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "callbacks"
    folder.mkdir()
    (folder / "scale.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    own_callbacks.cache_clear()
    try:
        train(with_callback(text, use="Scale", factor=0.5), tmp_path / "run")
    finally:
        own_callbacks.cache_clear()
        sys.modules.pop(f"{package.__name__}.scale", None)
    assert "scaled" in read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]


def test_a_checkpoint_of_0_2_keeps_what_it_knew_of_the_loss(text: Path, tmp_path: Path) -> None:
    config = small(text, run={"tokens": 6 * STEP})
    Trainer(config, tmp_path / "run").train(until=3)
    manifest = tmp_path / "run" / "checkpoints" / "step-3" / "manifest.json"
    data = read_json(manifest)
    watch = data["state"].pop("callbacks")["LossWatch"]
    assert len(watch["recent"]) == 3
    data["state"] |= watch
    write_json(manifest, data)
    resumed = Trainer(config, tmp_path / "run")
    assert resumed.resume()
    assert next(each for each in resumed.callbacks if isinstance(each, LossWatch)).state_dict() == watch


def test_the_summary_tells_how_busy_the_busiest_expert_was_and_survives_a_pause(text: Path, tmp_path: Path) -> None:
    config = small(text, run={"tokens": 20 * STEP, "checkpoint_every": 1})
    whole = train(config, tmp_path / "whole")
    assert whole is not None
    assert 1 <= whole["expert_load"] <= 2  # two of four experts are active
    Trainer(config, tmp_path / "paused").train(until=19)
    resumed = train(config, tmp_path / "paused")
    assert resumed is not None
    assert resumed["expert_load"] == whole["expert_load"]


def test_the_rate_that_a_warning_suggests_falls_with_the_steps_to_the_papers() -> None:
    from loopscale.cli.train import balancing_rate

    assert [balancing_rate(steps) for steps in (1, 60, 250, 500, 1000, 10_000)] == [
        0.01,
        0.01,
        0.01,
        0.005,
        0.0025,
        0.001,
    ]


def test_a_short_run_that_ends_unbalanced_is_warned_of(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from loopscale.cli.train import _print

    (tmp_path / "metrics.jsonl").write_text('{"step": 60, "loss": 2.0}\n')
    summary = {"validation_loss": 2.0, "tokens": 1000, "training_flops": 1e9}
    _print({**summary, "expert_load": 3.57}, tmp_path)
    said = capsys.readouterr().err
    assert "the busiest expert of a layer had 3.6 times the mean load" in said
    assert "help: set [model] bias_update_rate = 0.01 for so few steps" in said
    _print({**summary, "expert_load": 1.4}, tmp_path)
    assert "warning" not in capsys.readouterr().err


def test_the_progress_line_names_what_is_unusual_about_the_experts() -> None:
    row = {"loss": 2.5, "tokens_per_second": 1900.0, "expert_load": 1.3, "dropped": 0.0}
    assert describe(row) == "loss 2.5000, 1.9k tokens/s"
    assert describe({**row, "expert_load": 3.46}) == "loss 2.5000, 1.9k tokens/s, busiest expert 3.5x the mean"


def test_the_line_of_a_run_states_the_time_left(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loopscale.core.progress.LINE_EVERY", 0.0)
    line = ProgressLine()
    line.trainer = SimpleNamespace(  # type: ignore[assignment]
        progress=True, process=SimpleNamespace(rank=0), out=tmp_path / "tiny", step=0,
        config=SimpleNamespace(steps=100, step_tokens=1000),
    )  # fmt: skip
    line.start()
    line.report({"step": 40, "loss": 2.5, "tokens_per_second": 500.0})
    line.stop()
    assert capsys.readouterr().err == "tiny: step 40 of 100, loss 2.5000, 0.5k tokens/s, 2 min left\n"


def test_what_train_prints_fits_a_screen_and_starts_with_the_loss(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loopscale.cli.train import _print

    monkeypatch.setenv("COLUMNS", "80")
    lines = [f'{{"step": {step}, "loss": {5 - step / 500}}}' for step in range(1, 500)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    summary = {"validation_loss": 4.0123, "tokens": 32_800, "training_flops": 1.03e11, "expert_load": 3.5}
    _print(summary, tmp_path)
    printed = capsys.readouterr().out.rstrip().splitlines()
    assert printed[0] == "validation loss 4.0123 nats/token after 32.8K tokens (1.03e11 FLOPs)"
    assert len(printed) <= 22
    assert max(len(line) for line in printed if not line.startswith("Saved")) <= 80
