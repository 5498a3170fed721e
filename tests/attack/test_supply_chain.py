"""Dependencies are known by hash, listed, and nothing is fetched by an import."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from wheels import build_wheel

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

supply_chain = pytest.importorskip("supply_chain")


def test_every_pinned_version_but_that_of_torch_has_hashes():
    pinned = {name: version for name, version in supply_chain.pinned(ROOT / "constraints.txt") if name != "torch"}
    text = (ROOT / "requirements.lock").read_text()
    entries = re.findall(r"^([\w.-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE)
    assert {name: version for name, version, _ in entries} == pinned


def test_the_bill_of_materials_names_what_is_installed_and_what_it_needs():
    bill = supply_chain.sbom()
    components = {part["name"]: part for part in bill["components"]}
    assert {"loopscale", "numpy", "click"} <= set(components)
    assert components["numpy"]["purl"] == f"pkg:pypi/numpy@{components['numpy']['version']}"
    needs = {entry["ref"]: entry["dependsOn"] for entry in bill["dependencies"]}
    assert components["numpy"]["purl"] in needs[components["loopscale"]["purl"]]


def test_two_builds_give_the_same_wheel(tmp_path):
    first, second = (build_wheel(tmp_path / name).read_bytes() for name in ("first", "second"))
    assert first == second


IMPORT_ALL = """
import importlib, pkgutil, sys

def refuse(event, arguments):
    # Event loops connect a pair of local sockets; names and addresses elsewhere are what a download needs.
    if event == "socket.getaddrinfo" or (event == "socket.connect" and isinstance(arguments[1], tuple)):
        raise RuntimeError(f"an import uses the network: {arguments}")

sys.addaudithook(refuse)
import loopscale
for module in pkgutil.walk_packages(loopscale.__path__, "loopscale."):
    if module.name.rpartition(".")[2] not in ("__main__", "vllm") and "evaluate.local" not in module.name:
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError:
            pass  # an optional package
"""


def test_no_import_downloads_anything():
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
