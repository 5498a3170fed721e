"""The examples in CONTRIBUTING.md work as they stand: an extension is one source file and one test file."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = re.findall(
    r"^```diff\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_of_an_extension_is_one_source_file_and_one_test_file(example, tmp_path):
    changed = re.findall(r"^\+\+\+ b/(\S+)", example, flags=re.MULTILINE)
    assert len(changed) == 2
    test = next(name for name in changed if name.startswith("tests/"))
    assert any(name.startswith("src/") for name in changed)
    for folder in ("src", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "benchmarks").mkdir()
    subprocess.run(["git", "apply", "--whitespace=nowarn", "-"], cwd=tmp_path, input=example, text=True, check=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "src")}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:]
