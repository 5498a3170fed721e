"""Pages that show commands and code: what they show, step by step, and how to run it.

A page is run in a folder of its own, top to bottom: fenced blocks with a title become files, commands are indented
lines or lines of a shell block, other TOML blocks are parsed, and Python blocks share one set of names.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import loopscale as ls
from loopscale.cli import main
from loopscale.fitting import simulate_sweep

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))

NOT_RUN = {
    "from_architecture(rung(": "a model of a billion weights",
    "LLM(": "vLLM has a separate environment; tests/model/vllm_parity.py runs there",
    "model.vllm import": "vLLM has a separate environment; tests/model/vllm_parity.py runs there",
    "BalanceCallback(": "a trainer and data of the reader; tests/model/test_trainer_callback.py runs the callback",
    "lab s3 --seed": "minutes of training; tests/lab trains a smaller one",
    "loopscale app": "a server, which does not end by itself; another test starts one and sends it the requests",
    "loopscale serve": "a server, which does not end by itself; tests/model/test_serving.py sends it the requests",
    "OpenAI(": "a server must run; tests/model/test_serving.py sends one the requests",
    "my-engine.json": "a report of the reader's engine; tests/model/test_conformance.py compares one",
    "later-runs.csv": "runs that were trained after the forecast; tests/fitting/test_forecast.py scores some",
    "curl ": "a server must run; another test starts one and sends it the requests",
    "--tasks paper": "its data are on the hub",
    "SmolLM2-135M": "a pretrained model that does not ship; tests/model/test_retrofit.py converts small ones",
    "examples/demo.toml": "an hour of training",
    "experiments/": "minutes or hours of fits and training",
    "torchrun ": "several GPUs or nodes; tests/train/test_parallel.py runs torchrun on this machine",
    "pip ": "an installation from the network; tests/test_core_only.py installs the wheel in an empty environment",
}
"""What marks a step that the test of its page cannot run, and why."""

_COMMANDS = "loopscale|python|torchrun|pip|curl|make|vllm"
_STEP = re.compile(
    r"^```(?P<kind>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<body>.*?)^```$"
    rf"|^    (?:\$ )?(?P<command>(?:{_COMMANDS}) (?:[^\n]*\\\n)*[^\n]*)$",
    flags=re.MULTILINE | re.DOTALL,
)
_COMMENT = re.compile(r"[ ]+#[ ].*$")


@dataclass(frozen=True)
class Step:
    """One thing that a page has its reader do: ``file``, ``python``, ``command`` or ``toml``."""

    kind: str
    text: str
    name: str = ""

    @property
    def runs(self) -> bool:
        """Whether a test can do it too."""
        return not any(mark in self.text for mark in NOT_RUN)


def steps(page: Path) -> list[Step]:
    """Return what a page shows and a test can do, in order."""
    return [step for step in all_steps(page) if step.runs]


def all_steps(page: Path) -> list[Step]:
    """Return everything that a page has its reader do, in order."""
    return all_steps_of(page.read_text(encoding="utf-8"))


def all_steps_of(text: str) -> list[Step]:
    """Return everything that a part of a page has its reader do, in order."""
    shown = []
    for match in _STEP.finditer(text):
        if match["command"]:
            shown += _commands(match["command"])
        elif match["title"]:
            shown.append(Step("file", match["body"], match["title"]))
        elif match["kind"] in ("python", "toml"):
            shown.append(Step(match["kind"], match["body"]))
        elif match["kind"] in ("bash", "sh", "console"):
            shown += _commands(match["body"])
    return shown


def _commands(text: str) -> list[Step]:
    lines = text.replace("\\\n", " ").splitlines()
    return [Step("command", _COMMENT.sub("", line.strip()).removeprefix("$ ")) for line in lines if line.strip()]


CONFIG = {
    "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 1000,
    "num_key_value_heads": 8, "intermediate_size": 1024, "tie_word_embeddings": True,
}  # fmt: skip
GRID = "keep_models = true\n[grid]\nrecurrence = [1, 2]\ntokens = [512, 1024]"


def write_reader_files(folder: Path) -> None:
    """Write the files that pages take as the reader's own: a sweep, a plan, texts, and those in path/to."""
    from sweeps import BASE, write_sweep

    sweep = simulate_sweep(recurrences=(1, 2, 4, 8, 16), tokens=np.linspace(1e11, 5e11, 5).tolist())
    sweep.to_csv(folder / "runs.csv")
    ls.plan(flops="5e21", memory="3GB", bits="int4").save(folder / "plan.json")
    write_sweep(folder / "path" / "to", GRID, base=BASE.replace("context = 16", "context = 64"))
    (folder / "path/to/config.json").write_text(json.dumps(CONFIG))
    (folder / "path/to/run.toml").write_text('[model]\nwidth = 64\n[run]\nbatch = 64\ntokens = "10M"\n')
    (folder / "valid.txt").write_text("It was a long way, and then it was not.\n" * 40)
    (folder / "next.csv").write_text("model,experts,recurrence,tokens\nbase,1,1,2048\n")


def run_page(page: Path) -> dict[str, object]:
    """Do what the page shows, in the current folder; return the names that its Python blocks leave."""
    names: dict[str, object] = {}
    for step in steps(page):
        if step.kind == "file":
            Path(step.name).write_text(step.text, encoding="utf-8")
        elif step.kind == "python":
            exec(step.text, names)
        elif step.kind == "toml":
            check_toml(step.text)
        else:
            assert run_command(step.text) == 0, step.text
    return names


def check_toml(text: str) -> None:
    """Refuse a settings file that loopscale would refuse: of a sweep, or of a training run."""
    from loopscale.sweep.spec import read_sweep
    from loopscale.train.config import TrainConfig

    Path("shown.toml").write_text(text, encoding="utf-8")
    (read_sweep if "[sweep]" in text else TrainConfig.read)("shown.toml")


def run_command(line: str) -> int:
    """Run a command line in this process; return its exit code."""
    try:
        main(shlex.split(line)[1:])
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    return 0


def run_from(installed: Path, page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Do what the page shows in ``folder``, in another process that imports loopscale from ``installed``."""
    path = os.pathsep.join([str(installed), str(Path(__file__).parent)])
    command = [sys.executable, __file__, str(page), str(installed)]
    variables = {**os.environ, "PYTHONPATH": path, "MPLBACKEND": "agg"}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)


def cells(notebook: Path) -> list[tuple[str, str]]:
    """Return a notebook's code cells, each with what it printed when it was saved."""
    code = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            printed = [part for out in cell["outputs"] if out.get("name") == "stdout" for part in out["text"]]
            code.append(("".join(cell["source"]), "".join(printed)))
    return code


if __name__ == "__main__":
    assert Path(ls.__file__).is_relative_to(sys.argv[2]), ls.__file__
    run_page(Path(sys.argv[1]))
