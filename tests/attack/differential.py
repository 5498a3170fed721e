"""The same random question to the command line, Python, the API and the page's JavaScript: one answer, or all refuse.

Beside the comparison, relations that must hold between answers: other units change nothing, a looser limit is never
worse, more tokens never predict a higher loss, a plan's loss is what ``predict`` says, a saved plan is the same plan.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import random
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import api

import loopscale as ls
from loopscale.app.page import bundle
from loopscale.cli import main
from loopscale.core.errors import InputError
from loopscale.planning import Plan
from loopscale.planning.matching import matched

LEVELS = ("inside", "near", "far", "beyond")
LAWS = ("looped-moe-2026", "joint-moe-2025", "chinchilla-epoch-2024", "iso-depth-2026", "qlabs-loops-2026")
EQUAL = ("label", "experts", "recurrence")
CLOSE = ("loss", "loss_low", "loss_high", "tokens", "train_flops", "weight_bytes", "kv_bytes", "inference_flops")

Answer = dict[str, Any] | str
"""What a surface answers, or its refusal."""


def asked_budget(draw: random.Random, extreme: bool) -> dict[str, Any]:
    """Return the fields of a random budget, as people write them."""
    low, high = (3, 35) if extreme else (19, 25)
    fields: dict[str, Any] = {"flops": f"{draw.uniform(1, 10):.4g}e{draw.randint(low, high)}"}
    if draw.random() < 0.7:
        most = 1e15 if extreme else 2e12
        fields["memory"] = f"{10 ** draw.uniform(8, 15 if most > 1e13 else 12):.4g}"
        fields["bits"] = draw.choice(["int4", "8", "q4_k_m", "bf16", "4.5"])
        if draw.random() < 0.5:
            fields["context"] = draw.choice([512, 8192, 131072])
            fields |= draw.choice([{}, {"batch": 8}, {"kv_bits": 8}, {"kept_passes": 1}, {"kept_window": 512}])
    if draw.random() < 0.3:
        fields[draw.choice(["max_tokens", "tokens", "serve_tokens", "unique_tokens"])] = (
            f"{10 ** draw.uniform(-2 if extreme else 9, 15):.4g}"
        )
    if draw.random() < 0.2:
        fields["inference_flops"] = f"{10 ** draw.uniform(6 if extreme else 8, 12):.4g}"
    if draw.random() < 0.1:
        fields |= {"min_speed": "20", "bandwidth": "51.2 GB/s"}
    return fields


def asked_plan(draw: random.Random, extreme: bool) -> dict[str, Any]:
    """Return a random question to ``plan``."""
    question = {**asked_budget(draw, extreme), "law": draw.choice((LAWS[0], *LAWS))}
    question["rule"] = draw.choice(["paper", "paper", "loss"])
    question["extrapolate"] = draw.random() < 0.7
    return question


def by_command(verb: str, positional: list[str], options: dict[str, Any]) -> Answer:
    """Ask the command line."""
    argv = [verb, *positional, "--json"]
    for name, value in options.items():
        argv += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])] if value is not False else []
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(argv)
        except SystemExit as stop:
            code = stop.code
    if code == 0:
        return json.loads(out.getvalue())
    assert code == 2, err.getvalue()
    return err.getvalue()


def by_python(question: dict[str, Any]) -> Answer:
    """Ask Python; a plan is also saved to text and read again."""
    try:
        plan = ls.plan(**question)
    except InputError as error:
        return str(error)
    data = json.loads(json.dumps(plan.to_dict()))
    assert Plan.from_dict(data) == plan, "a plan that was saved and read is another"
    return data


def by_api(client: api.Client, question: dict[str, Any]) -> Answer:
    """Ask the HTTP API."""
    status, content = client.send("POST", "/api/plan", body=json.dumps(question).encode(), **api.JSON)
    reply = json.loads(content)
    assert status in (200, 422), (status, reply)
    return reply["plan"] if status == 200 else reply["error"]


PAGE = """
const laws = {};
const ask = ({ law, rule, extrapolate, ...texts }) => {
  const limits = {};
  laws[law] ??= preparedLaw(DATA.laws[law]);
  try {
    for (const field of DATA.fields) {
      if (field.name in texts) limits[field.name] = parse(field, String(texts[field.name]));
    }
    const found = search(laws[law], limits, { rule });
    if (found.trust.level === "beyond" && !extrapolate) return "withheld";
    const { loss_low, loss_high, ...choice } = found.choice;
    return { choice, trust: found.trust };
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    return error.problem;
  }
};
const lines = require("readline").createInterface({ input: process.stdin });
lines.on("line", (line) => console.log(JSON.stringify(ask(JSON.parse(line)))));
"""


class Page:
    """The planner of the page, in Node: one process that answers line by line."""

    def __init__(self) -> None:
        node = shutil.which("node")
        assert node is not None, "Node is not installed"
        self._folder = tempfile.TemporaryDirectory()
        script = Path(self._folder.name) / "page.js"
        script.write_text(bundle("search.js") + PAGE)
        self._node = subprocess.Popen([node, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, question: dict[str, Any]) -> Answer:
        """Return what the page answers."""
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        self._node.stdin.write(json.dumps(question) + "\n")
        self._node.stdin.flush()
        line = self._node.stdout.readline()
        assert line, "the page's planner ended with an error"
        return json.loads(line)

    def close(self) -> None:
        """End Node."""
        self._node.communicate()
        self._folder.cleanup()


def unlike(first: Answer, second: Answer) -> str:
    """Return in what two answers differ; empty where they agree."""
    if isinstance(first, str) or isinstance(second, str):
        both = isinstance(first, str) and isinstance(second, str)
        return "" if both else f"one refuses: {first if isinstance(first, str) else second}"
    one, other = first["choice"], second["choice"]
    for name in EQUAL:
        if one[name] != other[name]:
            return f"{name}: {one[name]} and {other[name]}"
    for name in CLOSE:
        if name in other and not same(one[name], other[name]):
            return f"{name}: {one[name]} and {other[name]}"
    levels = first["trust"]["level"], second["trust"]["level"]
    return "" if levels[0] == levels[1] else f"trust: {levels}"


def same(one: float | None, other: float | None, tolerance: float = 1e-12) -> bool:
    """Tell whether two numbers agree, or both are missing."""
    if one is None or other is None:
        return one is other
    return abs(one - other) <= tolerance * max(abs(one), abs(other))


Ask = Callable[[dict[str, Any]], Answer]
"""Asks one surface for a plan."""


def all_surfaces(client: api.Client, page: Page | None) -> dict[str, Ask]:
    """Return how each surface is asked; the page needs Node."""
    asks: dict[str, Ask] = {
        "Python": by_python, "command line": partial(by_command, "plan", []), "API": partial(by_api, client),
    }  # fmt: skip
    return asks if page is None else asks | {"page": page.ask}


def compared(draw: random.Random, asks: dict[str, Ask], extreme: bool) -> tuple[str, Any, str]:
    """Ask one random question everywhere; return kind, question and what is wrong."""
    question = asked_plan(draw, extreme)
    answers = {name: ask(question) for name, ask in asks.items()}
    first = answers.pop("Python")
    wrong = [f"Python and {name}: {text}" for name, answer in answers.items() if (text := unlike(first, answer))]
    kind = "refused" if isinstance(first, str) else "answered"
    return kind, question, "; ".join(wrong)


def relation(draw: random.Random, asks: dict[str, Ask], extreme: bool) -> tuple[str, Any, str]:
    """Ask one surface two questions whose answers must stand in a relation; return kind, question and what is wrong.

    What follows a plan, a prediction or two designs side by side, is asked in Python.
    """
    question = asked_plan(draw, extreme) | {"extrapolate": True}
    kind = draw.choice(["units", "relaxed", "predicted", "tokens", "swapped", "trust"])
    surface = draw.choice(list(asks)) if kind in ("units", "relaxed") else "Python"
    ask_plan = asks[surface]
    answer = ask_plan(question)
    if isinstance(answer, str):
        return "refused", question, ""
    choice = answer["choice"]
    if kind == "units":
        other = {**question, "flops": repr(float(question["flops"]))}
        if "memory" in question:
            other["memory"] = f"{float(question['memory']) / 1e6!r}MB"
        found = ask_plan(other)
        # Other units may round in the last bit, where a limit is met exactly; nothing here is drawn at one.
        return f"{kind}, {surface}", (question, other), unlike_or_rounding(answer, found)
    if kind == "relaxed":
        name = draw.choice([name for name in ("memory", "flops", "max_tokens") if name in question])
        other = {**question, "rule": "loss", name: repr(float(question[name]) * 2)}
        strict = ask_plan({**question, "rule": "loss"})
        looser = ask_plan(other)
        worse = isinstance(looser, str) or looser["choice"]["loss"] > strict["choice"]["loss"] * (1 + 1e-12)
        return f"{kind}, {surface}", (question, other), f"twice the {name} is worse" if worse else ""
    if kind == "swapped":
        pair = [f"{size}:{E}:{R}" for size, E, R in ((draw.choice(["0.3B", "0.6B", "1.0B"]), draw.choice([1, 8]),
                                                      draw.choice([1, 2, 4])) for _ in range(2))]  # fmt: skip
        there, back = (matched(*names, "1e21", extrapolate=True).rows for names in (pair, pair[::-1]))
        wrong = [row["condition"] for row, other in zip(there, back, strict=True)
                 if not same(row["difference"], -other["difference"], 1e-9)]  # fmt: skip
        return kind, pair, f"swapped designs differ otherwise: {wrong}" if wrong else ""
    law = question["law"]
    model: dict[str, Any] = {"N": choice["active"]}  # a law of sizes alone
    if choice["width"] is not None:
        model = {"model": choice["rung"], "experts": choice["experts"], "recurrence": choice["recurrence"]}
    try:
        ask = lambda tokens: ls.predict(**model, tokens=tokens, law=law, extrapolate=True)  # noqa: E731
        predicted = ask(choice["tokens"])
        more = ask(choice["tokens"] * 2)
    except InputError as error:
        return "refused", (question, str(error)), ""
    if kind == "predicted":
        wrong = "unique_tokens" not in question and not same(predicted.loss, choice["loss"], 1e-9)
        return kind, question, f"predict says {predicted.loss}, plan {choice['loss']}" if wrong else ""
    if kind == "tokens":
        return kind, question, "more tokens predict a higher loss" if more.loss > predicted.loss else ""
    far = ask(choice["tokens"] * 1e6)
    order = [LEVELS.index(one.trust.level) for one in (predicted, more, far)]
    outside = dataclasses.asdict(predicted.trust)["factors"].get("tokens", 1.0)
    rising = order[1] <= order[2] or outside > 1
    return kind, question, "" if rising else f"trust grows with the distance: {order}"


def unlike_or_rounding(first: Answer, second: Answer) -> str:
    """Return in what two answers differ by more than the rounding of other units."""
    if isinstance(first, str) or isinstance(second, str):
        return unlike(first, second)
    one, other = first["choice"], second["choice"]
    if one["label"] != other["label"]:
        return f"label: {one['label']} and {other['label']}"
    wrong = [name for name in CLOSE if name in one and not same(one[name], other[name], 1e-9)]
    return f"{wrong[0]}: {one[wrong[0]]} and {other[wrong[0]]}" if wrong else ""


def attack(trials: int, seed: int = 0) -> tuple[Counter[tuple[str, str]], list[Any]]:
    """Ask so many questions; return the verdicts by kind, and what was wrong."""
    verdicts, bad = Counter[tuple[str, str]](), []
    client, page = api.Client(), Page() if shutil.which("node") else None
    asks = all_surfaces(client, page)
    try:
        for trial in range(trials):
            draw = random.Random(f"{seed} {trial}")
            extreme = trial % 3 == 0
            try:
                kind, question, wrong = (compared if trial % 2 else relation)(draw, asks, extreme)
            except Exception as error:
                kind, question, wrong = "exception", f"{seed} {trial}", f"{type(error).__name__}: {error}"
            verdicts[kind, "WRONG" if wrong else "works"] += 1
            if wrong:
                bad.append((f"{seed} {trial}", question, wrong))
    finally:
        client.close()
        if page is not None:
            page.close()
    return verdicts, bad


if __name__ == "__main__":
    import sys
    import time

    start = time.process_time()
    counts, problems = attack(int(sys.argv[1]), int(sys.argv[2]))
    print(dict(counts), f"{time.process_time() - start:.0f} s")
    for problem in problems[:10]:
        print(problem)
