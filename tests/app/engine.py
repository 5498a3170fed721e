"""The page's planner in Node, beside Python's."""

import json
import shutil
import subprocess
from typing import Any

import pytest

from loopscale.app.page import bundle

PLANNER = ("cluster.js", "design.js", "map_rows.js", "search.js")
"""The modules that plan."""


def run_node(code: str, tasks: Any, *modules: str) -> Any:
    """Run ``code``, a JavaScript function body of ``tasks``, beside the page's modules; return what it returns."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node is not installed")
    script = f"""{bundle(*modules)}
const tasks = JSON.parse(require("fs").readFileSync(0, "utf8"));
const clean = (_, value) => (typeof value === "number" && !Number.isFinite(value) ? String(value) : value);
console.log(JSON.stringify(((tasks) => {{ {code} }})(tasks), clean));
"""
    command = [node, "--stack-size=4000", "-e", script] if len(script) < 100_000 else [node, "-"]
    if command[-1] != "-":
        done = subprocess.run(command, input=json.dumps(tasks), capture_output=True, text=True, timeout=600)
    else:
        body = script.replace('require("fs").readFileSync(0, "utf8")', json.dumps(json.dumps(tasks)))
        done = subprocess.run(command, input=body, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)
