"""``loopscale eval`` as a person runs it: what it prints, what it keeps, and what it says of bad input."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import trained
from click.testing import CliRunner, Result

from loopscale.cli.eval import eval_command
from loopscale.scaling.at_test_time import at_test_time

CHANCE = {"spelling": 25.0, "grammar": 25.0, "completion": 5.0}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(eval_command, [str(each) for each in arguments])


def rows(done: Result) -> dict[int, dict]:
    """Return the scores by recurrence."""
    assert done.exit_code == 0, f"{done.output} {done.exception!r}"
    return {row["recurrence"]: row for row in json.loads(done.stdout)["rows"]}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def measured(checkpoint: Path, results: Path) -> dict[int, dict]:
    valid = results / "valid.txt"
    valid.write_text(trained.text(60, seed=7))
    asked = (checkpoint, "--tasks", "local", "--text", valid, "--context", 128, "--recurrence", "1..4")
    return rows(run(*asked, "--tokens", "150k", "--results", results, "--json"))


def test_a_trained_checkpoint_beats_chance_on_the_local_suite(measured: dict[int, dict]):
    best = measured[3]["scores"]
    for name, chance in CHANCE.items():
        assert best[name]["value"] - 3 * best[name]["stderr"] > chance, name
    assert best["passages"]["value"] < 1.5  # bits a byte; eight where nothing is known


def test_recurrence_changes_the_suite_the_way_it_changes_the_validation_loss(measured: dict[int, dict]):
    loss = {R: row["scores"]["valid.txt loss"]["value"] for R, row in measured.items()}
    text = {R: row["scores"]["passages"]["value"] for R, row in measured.items()}
    assert sorted(loss, key=loss.get) == sorted(text, key=text.get)
    best, worst = min(loss, key=loss.get), max(loss, key=loss.get)
    assert (best, worst) == (3, 1)  # it was trained at three passes
    assert measured[best]["scores"]["Overall"]["value"] > measured[worst]["scores"]["Overall"]["value"] + 10


def test_the_loss_at_each_recurrence_stands_beside_what_other_models_let_expect(
    measured: dict[int, dict], checkpoint: Path, results: Path
):
    rise = {R: row["expected_rise"] for R, row in measured.items()}
    assert rise[3] == 0  # it was trained at three passes
    assert rise[1] > rise[2] > 0
    assert rise[4] == pytest.approx(float(at_test_time("fixed").rise(4, 3)))
    asked = (checkpoint, "--tasks", "local", "--text", results / "valid.txt", "--context", 128)
    printed = " ".join(run(*asked, "--recurrence", "1..4", "--results", results).output.split())
    loss = {R: row["scores"]["valid.txt loss"]["value"] for R, row in measured.items()}
    assert f"minus R = 3: {loss[1] - loss[3]:+.3f}" in printed
    assert f"{rise[1]:+.3f}, {rise[2]:+.3f}, {rise[4]:+.3f}" in printed


def test_a_finished_evaluation_computes_nothing(measured: dict[int, dict], checkpoint: Path, results: Path):
    before = {path: path.stat().st_mtime_ns for path in results.glob("*/*.json")}
    again = rows(
        run(checkpoint, "--tasks", "local", "--context", 128, "--recurrence", "1..4", "--results", results, "--json")
    )
    assert again[2]["scores"]["spelling"] == measured[2]["scores"]["spelling"]
    assert {path: path.stat().st_mtime_ns for path in results.glob("*/*.json")} == before


def test_other_settings_are_other_results(measured: dict[int, dict], checkpoint: Path, results: Path):
    before = set(results.glob("*/*.result.json"))
    asked = (checkpoint, "--tasks", "local", "--context", 128, "--recurrence", 2, "--results", results, "--json")
    few = rows(run(*asked, "--limit", 4))
    assert few[2]["scores"]["spelling"]["stderr"] != measured[2]["scores"]["grammar"]["stderr"]
    assert len(set(results.glob("*/*.result.json")) - before) == 4


def test_the_table_comes_as_text_markdown_csv_and_latex(measured: dict[int, dict], results: Path):
    asked = ("--tasks", "local", "--context", 128, "--results", results)
    text, markdown, latex = (run(*asked, *form).stdout for form in ((), ("--markdown",), ("--latex",)))
    overall = measured[3]["scores"]["Overall"]
    low, high = measured[3]["intervals"]["Overall"]
    assert low < overall["value"] < high
    places = 0 if high - low >= 10 else 1
    cell = f"{overall['value']:.1f} [{low:.{places}f}, {high:.{places}f}] ({measured[3]['gain']:+.1f})"
    assert cell in text
    assert cell in markdown
    assert cell in latex
    assert r"2.0$\times$" in latex
    table = list(csv.DictReader(io.StringIO(run(*asked, "--csv").stdout)))
    assert [line["recurrence"] for line in table] == ["1", "2", "3", "4"]
    assert float(table[2]["Overall"]) == pytest.approx(overall["value"])
    assert float(table[2]["relative_compute"]) == pytest.approx(measured[3]["compute"])
    assert table[0]["gain"] == ""


def test_the_tidy_export_has_training_compute_from_the_store(measured: dict[int, dict], results: Path, tmp_path: Path):
    done = run("--tasks", "local", "--context", 128, "--results", results, "--tidy", tmp_path / "tidy.csv")
    assert done.exit_code == 0, done.output
    table = list(csv.DictReader((tmp_path / "tidy.csv").open()))
    assert list(table[0]) == [
        "model", "recurrence", "task", "metric", "value", "stderr", "training_flops",
        "size", "run", "experts", "trained_recurrence", "tokens", "validation_loss", "kv", "relative_compute",
    ]  # fmt: skip
    assert {line["task"] for line in table} == {"spelling", "grammar", "completion", "passages", "Choice", "Overall"}
    config = json.loads((next(results.glob("*/model.json"))).read_text())
    assert config["training_tokens"] == 150_000
    assert all(float(line["training_flops"]) > 1e11 for line in table)


def test_the_papers_rows_are_shown_as_printed_and_marked():
    done = run("--tasks", "paper", "--published", "--markdown", "--results", "absent")
    line = next(line for line in done.stdout.splitlines() if "| 2 |" in line)
    assert line.startswith("| A0.3B-1.3B LoopMoE † | 2 | 0.8× | 26.7 | 30.0 |")
    assert line.endswith("| 43.0 (+6.4) |")


def test_early_exit_trades_accuracy_for_passes(checkpoint: Path, tmp_path: Path):
    valid = tmp_path / "valid.txt"
    valid.write_text(trained.text(20, seed=8))
    asked = (checkpoint, "--tasks", "local", "--text", valid, "--context", 128, "--recurrence", 3, "--limit", 12)
    done = run(*asked, "--exit", "kl", "--threshold", "0,0.1,100", "--results", tmp_path / "r", "--json")
    assert done.exit_code == 0, done.output
    found = {row["exit"]: row for row in json.loads(done.stdout)["rows"]}
    assert found["kl 0"]["passes"] == 3
    assert found["kl 0"]["scores"]["grammar"] == found[""]["scores"]["grammar"]
    assert 2 <= found["kl 100"]["passes"] < found["kl 0.1"]["passes"] < 3
    losses = [found[name]["scores"]["valid.txt loss"]["value"] for name in ("kl 0", "kl 0.1", "kl 100")]
    assert losses == sorted(losses)
    assert found["kl 100"]["compute"] < found["kl 0"]["compute"]


def test_smaller_kv_caches_are_measured_on_a_text_and_no_task(checkpoint: Path, tmp_path: Path):
    valid = tmp_path / "valid.txt"
    valid.write_text(trained.text(8, seed=8))
    asked = (checkpoint, "--tasks", "local", "--text", valid, "--context", 40, "--limit", 4, "--dtype", "float32")
    asked += ("--recurrence", "1,3", "--results", tmp_path / "r", "--json")
    plain = {row["recurrence"]: row["scores"] for row in json.loads(run(*asked).stdout)["rows"]}
    done = run(*asked, "--kv", "passes:3,passes:1,window:4")
    assert done.exit_code == 0, done.output
    found = {(row["recurrence"], row["kv"]): row["scores"] for row in json.loads(done.stdout)["rows"]}
    assert set(found) == {(1, ""), (3, ""), (3, "passes:3"), (3, "passes:1"), (3, "window:4")}
    assert found[1, ""] == plain[1]  # what was stored without --kv is found again
    costs = {kv: found[3, kv]["valid.txt KV cost"] for kv in ("passes:3", "passes:1", "window:4")}
    assert costs["passes:3"]["value"] == pytest.approx(0, abs=1e-4)
    for kv, cost in costs.items():
        assert "grammar" not in found[3, kv]
        loss = found[3, kv]["valid.txt loss"]["value"]
        assert loss == pytest.approx(plain[3]["valid.txt loss"]["value"] + cost["value"], abs=1e-4)
        assert kv == "passes:3" or abs(cost["value"]) > cost["stderr"] / 10 > 0
    shown = run(*asked[:-1], "--kv", "passes:1").stdout
    assert "3 passes:1" in shown
    assert "KV cost" in shown


def test_a_folder_of_task_yaml_is_evaluated_by_its_path(checkpoint: Path, tmp_path: Path):
    from loopscale.evaluate.suites import load_suite

    home = load_suite("local").benchmarks[0].folder
    for name in ("spelling.yaml", "spelling.jsonl", "sentences.py"):
        shutil.copy(home / name, tmp_path / name)
    found = run(
        checkpoint, "--tasks", tmp_path, "--recurrence", 3, "--results", tmp_path / "r", "--json", "--limit", 10,
        "--trust-task-code",
    )  # fmt: skip
    assert rows(found)[3]["scores"]["loopscale_spelling"]["value"] > 50


def test_killed_it_resumes_without_repeating_finished_pairs(untrained: Path, tmp_path: Path):
    store = tmp_path / "results"
    asked = [sys.executable, "-m", "loopscale", "eval", str(untrained), "--tasks", "local", "--recurrence", "1..3"]
    asked += ["--limit", "8", "--context", "128", "--results", str(store), "--json"]
    work = subprocess.Popen(asked, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(list(store.glob("*/*.result.json"))) < 2:
        assert work.poll() is None
        time.sleep(0.002)
    os.kill(work.pid, signal.SIGKILL)
    work.wait()
    kept = {path: path.stat().st_mtime_ns for path in store.glob("*/*.result.json")}
    assert 2 <= len(kept) < 12
    for path in kept:
        json.loads(path.read_text())
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert len(json.loads(done.stdout)["rows"]) == 3
    after = {path: path.stat().st_mtime_ns for path in store.glob("*/*.result.json")}
    assert len(after) == 12
    assert {path: after[path] for path in kept} == kept
    assert done.stderr.count(": done") == 12 - len(kept)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["absent", "--tasks", "local"], "absent: no such checkpoint; give a folder that save_pretrained wrote"),
        (["{c}", "--tasks", "local", "--recurrence", "0"], "'0' is not a list of whole numbers from 1 up"),
        (["{c}"], "nothing to evaluate; give --tasks"),
        (["{c}", "--tasks", "local", "--baseline", "tine"], "baseline 'tine' is no evaluated model"),
        (["{c}", "--tasks", "local", "--context", "999"], "more than the model's max_position_embeddings (512)"),
        (["{c}", "--tasks", "local", "--exit", "kl", "--threshold", "soon"], "write it like 0.001,0.01,0.1"),
        (["{c}", "--tasks", "local", "--exit", "kl", "--backend", "vllm"], "--exit goes with --backend hf"),
        (["{c}", "--tasks", "local", "--kv", "passes:1"], "--kv measures the loss on a text; give --text FILE"),
        (["{c}", "--text", "absent.txt", "--kv", "last"], "'last' is not a KV cache; write passes:1, window:64"),
        (["{c}", "--tasks", "local", "--tokens", "1B,2B"], "2 numbers for 1 checkpoints"),
        (["{c}", "--text", "absent.txt"], "'absent.txt': no such file"),
        (["--tasks", "local", "--results", "absent"], "no results for these tasks and settings"),
        (["{c}", "--tasks", "{here}"], "no task found there"),
    ],
)
def test_bad_input_is_one_sentence(untrained: Path, tmp_path: Path, arguments: list[str], said: str):
    (tmp_path / "empty").mkdir()
    named = [each.format(c=untrained, here=tmp_path / "empty") for each in arguments]
    done = run(*named, *(() if "--results" in named else ("--results", tmp_path / "r")))
    assert done.exit_code != 0
    message = done.output if done.output else str(done.exception)
    assert said in message.replace("\n", " ")
    assert not (tmp_path / "r").exists()


def test_an_unknown_task_and_a_hub_out_of_reach_say_what_to_do(untrained: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    done = run(untrained, "--tasks", "arc_esay", "--results", tmp_path / "r")
    assert "'arc_esay' is not known to lm-eval 0.4.13 (did you mean 'arc_easy'?)" in str(done.exception)
    done = run(untrained, "--tasks", "arc_easy", "--results", tmp_path / "r")
    said = str(done.exception)
    assert "needs the data set 'allenai/ai2_arc:ARC-Easy', and the Hugging Face hub is out of reach" in said
    assert "HF_HOME=folder loopscale eval --tasks arc_easy --download" in said
    assert "HF_HUB_OFFLINE=1" in said
    assert not (tmp_path / "r").exists()


def test_heads_that_vllm_has_no_kernel_for_are_refused_before_an_engine_starts(
    untrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    on_cpu = SimpleNamespace(is_cpu=lambda: True)
    kernels = SimpleNamespace(get_supported_head_sizes=lambda: [48, 96])
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "vllm.platforms", SimpleNamespace(current_platform=on_cpu))
    attention = SimpleNamespace(CPUAttentionBackend=kernels)
    monkeypatch.setitem(sys.modules, "vllm.v1.attention.backends.cpu_attn", attention)
    done = run(untrained, "--tasks", "local", "--backend", "vllm", "--results", tmp_path / "r")
    assert "vLLM on a CPU has attention for heads of 48, 96: run it with Transformers" in str(done.exception)
    assert not (tmp_path / "r").exists()
