"""llama.cpp from the npm package ``node-llama-cpp``: the tokens of a GGUF file, and formats that only it can write."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

from loopscale.core.errors import InputError

K_QUANTS = {
    "q2_k": 10,
    "q3_k_s": 11,
    "q3_k_m": 12,
    "q3_k_l": 13,
    "q4_k_s": 14,
    "q4_k_m": 15,
    "q5_k_s": 16,
    "q5_k_m": 17,
    "q6_k": 18,
}
"""Formats with blocks of 256 weights, which the ``gguf`` package reads but cannot write, with llama.cpp's numbers."""

WHERE = "the folder where `npm install node-llama-cpp @node-llama-cpp/linux-x64` was run"


def quantise(source: Path, target: Path, form: str, packages: str) -> None:
    """Write a GGUF file in a format of ``K_QUANTS``; rows that are no multiple of 256 get the nearest other one."""
    system = {"Linux": "linux", "Darwin": "mac"}.get(platform.system(), "win")
    machine = {"x86_64": "x64", "AMD64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    builds = (Path(packages) / "node_modules" / "@node-llama-cpp").glob(f"{system}-{machine}*/bins/*/libllama.*")
    libraries = next((file.parent for file in sorted(builds)), None)
    if libraries is None:
        raise InputError(f"`packages` is {packages}, where there is no llama.cpp for this machine; give {WHERE}")
    script = str(files("loopscale.model").joinpath("llama_quantize.py"))
    done = _run(
        [sys.executable, script, str(libraries), str(source), str(target), str(K_QUANTS[form])], "quantise the file"
    )
    if not target.is_file():
        raise InputError(f"llama.cpp wrote no file: {_message(done)}; try another format")


def generated(file: Path, prompts: list[list[int]], new: int, packages: str) -> list[list[int]]:
    """Return the tokens that llama.cpp generates greedily after each prompt."""
    script = str(files("loopscale.model").joinpath("llama_cpp.mjs"))
    try:
        done = _run(["node", script, packages, str(file), str(new)], "run the file", json.dumps(prompts))
    except FileNotFoundError:
        raise InputError("node is not installed; llama.cpp is run through its package node-llama-cpp") from None
    tokens: list[list[int]] = json.loads(done.splitlines()[-1])
    return tokens


def _run(command: list[str], what: str, stdin: str | None = None) -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"llama.cpp could not {what}: {_message(done.stdout + done.stderr)}")
    return done.stdout


def _message(printed: str) -> str:
    lines = [line for line in printed.splitlines() if "rror" in line] or ["no message"]
    return lines[0].strip()[:200]
