"""Without the optional packages, every command works or ends in one sentence that names the extra to install."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loopscale.cli.verbs import VERBS
from loopscale.core.errors import CPU_TORCH, EXTRAS, missing_extra
from loopscale.scaling import published
from pages import ROOT
from wheels import build_wheel

PACKAGES = sorted({package for packages in EXTRAS.values() for package in packages})

RUNNER = """
import contextlib, io, json, sys
from importlib.abc import MetaPathFinder

class Hidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

HIDDEN, COMMANDS = json.loads(sys.argv[1])
sys.meta_path.insert(0, Hidden())
from loopscale.cli import main
results = []
for argv in COMMANDS:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(argv)
        except SystemExit as stop:
            code = stop.code
        except BaseException as error:
            code = repr(error)
    results.append([argv, code, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""

WORKS = {
    "plan": ["plan", "--flops", "5e21", "--memory", "3GB", "--bits", "int4"],
    "predict": ["predict", "--rung", "1.0B", "--experts", "8", "--recurrence", "2", "--tokens", "500B"],
    "profile": ["profile", "joint", "--memory", "1GB,3GB", "--bits", "int4"],
    "fit": ["fit", "simulated", "--resamples", "2"],
    "compare": ["compare", "simulated", "--folds", "0", "--hold-out", "R=8"],
    "backtest": ["backtest", "simulated"],
    "forecast": ["forecast", "simulated", "--flops", "1e22", "--resamples", "2"],
    "scoreboard": ["scoreboard", "--help"],
    "isoflop": ["isoflop", "--help"],
    "matched": ["matched", "0.3B:8:4", "0.6B:8:1", "--flops", "5e21"],
    "reproduce": ["reproduce"],
    "seeds": ["seeds", "--difference", "0.01", "--spread", "0.0144"],
    "next": ["next", "--help"],
    "downstream": ["downstream", "--help"],
    "gate": ["gate", "simulated", "--keep", "E == 1", "--against", "looped-moe-2026"],
    "figures": ["figures", "--only", "joint-optimum", "--out", "figures"],
    "report": ["report", "sweep", "simulated", "--out", "sweep.html"],
    "count": ["count", "--rung", "0.3B"],
    "laws": ["laws"],
    "data": ["data"],
    "presets": ["presets"],
    "schema": ["schema"],
    "verify": ["verify", "law.json"],
    "help": ["help", "--all"],
}
"""A call of each command that needs the core alone."""

NEEDS = {
    "train": ["train", "tiny.toml"],
    "sweep": ["sweep", "plan", "sweep.toml"],
    "generate": ["generate", "model", "--prompt", "x"],
    "routing": ["routing", "model", "--text", "text.txt"],
    "convert": ["convert", "model", "--out", "looped"],
    "serve": ["serve", "model"],
    "conform": ["conform", "model", "--write", "golden.json"],
    "export": ["export", "model", "--to", "unrolled", "--out", "plain"],
    "eval": ["eval", "model", "--tasks", "local"],
    "app": ["app", "--no-open"],
    "demo": ["demo", "--out", "out"],
    "lab": ["lab", "s3"],
}
"""A call of each command that needs an extra."""


def write_inputs(folder: Path) -> None:
    """Write the files that the commands name, so that only the packages are missing."""
    (folder / "tiny.toml").write_text('[model]\nwidth = 64\n[run]\ntokens = "1k"\n')
    (folder / "sweep.toml").write_text('[sweep]\nname = "x"\n[sizes.a]\nwidth = 32\n[grid]\ntokens = ["1k"]\n')
    (folder / "text.txt").write_text("text")
    (folder / "model").mkdir()
    published().save(folder / "law.json")


def check(results: list[tuple[list[str], object, str, str]]) -> None:
    for argv, code, out, err in results:
        if argv[0] in NEEDS:
            assert code == 2, (argv, code, out, err)
            assert "pip install 'loopscale[" in err, (argv, err)
            assert err.count("\n") == 1, err
            assert out == "", (argv, out)
        else:
            assert code == 0, (argv, code, err)


def test_every_command_is_tried():
    assert {*WORKS, *NEEDS} >= set(VERBS)


def test_commands_without_the_optional_packages(tmp_path):
    write_inputs(tmp_path)
    commands = [argv for name, argv in {**WORKS, **NEEDS}.items() if name in VERBS]
    argv = [sys.executable, "-c", RUNNER, json.dumps([PACKAGES, commands])]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    check(json.loads(done.stdout))


@pytest.mark.parametrize("module", ["loopscale.model", "loopscale.train.config", "loopscale.train.trainer"])
def test_an_import_without_the_optional_packages_names_the_extra(module):
    code = RUNNER.partition("from loopscale.cli")[0] + f"import {module}"
    done = subprocess.run([sys.executable, "-c", code, json.dumps([PACKAGES, []])], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'loopscale[train]'" in done.stderr.splitlines()[-1]


def test_a_missing_torch_is_installed_without_cuda_first(monkeypatch):
    monkeypatch.setattr("loopscale.core.errors.find_spec", lambda package: None)
    for module, extra in (("torch", "train"), ("psutil", "train"), ("lm_eval", "eval"), ("torchao", "quant")):
        sentence = missing_extra(module, extra)
        assert sentence.index("whl/cpu") < sentence.index(f"then pip install 'loopscale[{extra}]'")
    assert "torch" not in missing_extra("uvicorn", "app")
    assert CPU_TORCH in (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_the_wheel_in_an_empty_environment(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "venv"], cwd=tmp_path, check=True)
    python = tmp_path / "venv" / "bin" / "python"
    constraints = Path(__file__).parents[1] / "constraints.txt"
    install = [python, "-m", "pip", "install", "--quiet", "-c", constraints, build_wheel(tmp_path)]
    subprocess.run(install, check=True)
    write_inputs(tmp_path)
    commands = [argv for name, argv in {**WORKS, **NEEDS}.items() if name in VERBS]
    argv = [python, "-I", "-c", RUNNER, json.dumps([[], commands])]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    check(json.loads(done.stdout))
