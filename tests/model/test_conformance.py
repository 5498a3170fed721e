"""The conformance kit: engines that compute the model pass, and each kind of fault is found where it is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from looped_models import model, tokens

from loopscale.cli.conform import ENGINES as OFFERED
from loopscale.cli.conform import conform_command
from loopscale.core.errors import InputError
from loopscale.model import vllm as vllm_plugin
from loopscale.model.cache import Slots
from loopscale.model.conformance import Deviation, compare, golden
from loopscale.model.engines import ENGINES, run_engine

PROMPTS = [tokens(7, seed=seed).tolist() for seed in (3, 4)]


def looped(**changes: Any) -> Any:
    return model(dtype=torch.float32, **changes)


def differences(changed: Any, **changes: Any) -> list[Deviation]:
    return compare(golden(looped(**changes), PROMPTS, (1, 3)), golden(changed, PROMPTS, (1, 3)))


@pytest.mark.parametrize("changes", [{}, {"num_experts": 1}, {"pass_norms": True, "balance": "pass"}])
def test_the_model_written_out_as_plain_layers_conforms(changes: dict[str, Any]) -> None:
    made = looped(**changes)
    expected = golden(made, PROMPTS, (1, 2, 3))
    report = run_engine("unrolled", made, expected)
    assert not compare(expected, report)
    assert len(report["runs"][-1]["slots"]) == 2 + 2 * 3


@pytest.mark.parametrize(
    ("engine", "package"), [("onnx", "onnxruntime"), ("torch.export", "torch"), ("mlx", "mlx.core")]
)
def test_what_is_exported_conforms_in_its_engine(engine: str, package: str) -> None:
    pytest.importorskip(package)
    made = looped(loop_layers=1)
    expected = golden(made, PROMPTS, (2,))
    report = run_engine(engine, made, expected)
    assert not compare(expected, report)
    assert all(run["logits"][0] is None and run["logits"][1] for run in report["runs"])


class FakeVLLM:
    """What `conform` uses of vLLM, with the tokens of Transformers; kernels may be missing."""

    def __init__(self, model: Any, R: int, fault: str | None) -> None:
        self.model, self.R, self.fault = model, R, fault

    def generate(self, prompts: list[dict[str, Any]], how: SimpleNamespace, use_tqdm: bool) -> list[Any]:
        if self.fault is not None:
            raise RuntimeError(self.fault)
        replies = []
        for ids in (prompt["prompt_token_ids"] for prompt in prompts):
            out = self.model.generate(
                torch.tensor([ids]), recurrence=self.R, max_new_tokens=how.max_tokens, do_sample=False, eos_token_id=-1
            )
            replies.append(SimpleNamespace(outputs=[SimpleNamespace(token_ids=out[0, len(ids) :].tolist())]))
        return replies


@pytest.mark.parametrize("fault", [None, "Unsupported CPU attention configuration: head_dim=16\nmore"])
def test_vllm_reports_tokens_or_says_what_it_lacks(fault: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    made = looped()
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=SimpleNamespace))
    monkeypatch.setattr(vllm_plugin, "register", lambda: None)
    monkeypatch.setattr(vllm_plugin, "engines", lambda _, passes, **__: {R: FakeVLLM(made, R, fault) for R in passes})
    expected = golden(made, PROMPTS, (1, 3))
    if fault is not None:
        with pytest.raises(InputError, match=r"^vLLM cannot run this model: Unsupported .* head_dim=16$"):
            run_engine("vllm", made, expected)
        return
    report = run_engine("vllm", made, expected)
    assert not compare(expected, report)
    report["runs"][-1]["tokens"][0] += 1
    assert [difference.what for difference in compare(expected, report)] == ["tokens"]


def test_a_wrong_cache_slot_is_found_at_its_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    made = looped()
    expected = golden(made, PROMPTS, (1, 3))
    right = Slots.loop

    def swapped(self: Slots, pass_index: int, layer: int) -> int:
        return right(self, {1: 2, 2: 1}.get(pass_index, pass_index), layer)

    monkeypatch.setattr(Slots, "loop", swapped)
    found = compare(expected, golden(made, PROMPTS, (1, 3)))
    assert {(each.what, each.recurrence) for each in found} == {("cache slot", 3)}  # consistent, so logits are right
    assert {each.pass_index for each in found} == {2, 3}
    assert {each.part for each in found} == {"loop"}


def test_keys_of_another_pass_change_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    made = looped()
    expected = golden(made, PROMPTS, (1, 3))
    monkeypatch.setattr(type(made.config), "kept", lambda self, recurrence: min(recurrence, 2))
    found = compare(expected, golden(made, PROMPTS, (1, 3)))
    assert {each.recurrence for each in found} == {3}
    assert {"cache slot", "logits"} <= {each.what for each in found}


def test_passes_in_another_order_are_found_at_the_first_that_moved() -> None:
    options = {"pass_norms": True}
    wrong = looped(**options)
    for block in wrong.model.loop:
        block.later = torch.nn.ModuleList(reversed(block.later))
    found = differences(wrong, **options)
    assert {each.recurrence for each in found} == {3}
    assert min(each.pass_index for each in found if each.part == "loop") == 2
    assert "logits" in {each.what for each in found}


def test_a_missing_router_bias_is_found_at_the_first_router_it_changes() -> None:
    wrong = looped()
    for block in wrong.model.loop:
        block.mlp.router.bias_rows.zero_()
    found = differences(wrong)
    assert found[0].what == "experts"
    assert {each.part for each in found if each.what == "experts" and each.pass_index == 1} == {"loop"}
    assert not [each for each in found if each.part == "prelude"]


def test_a_report_of_tokens_alone_is_compared_and_near_ties_do_not_count() -> None:
    expected = golden(looped(), PROMPTS, (2,))
    report = {**expected, "runs": [{k: run[k] for k in ("prompt", "recurrence", "tokens")} for run in expected["runs"]]}
    report = json.loads(json.dumps(report))
    assert not compare(expected, report)
    report["runs"][1]["tokens"][4] += 1
    assert [str(each) for each in compare(expected, report)] == ["tokens at R = 2, prompt 1: 1"]
    expected["runs"][1]["margins"][4] = 1e-6
    assert not compare(expected, report)


def test_the_command_offers_every_engine() -> None:
    assert tuple(ENGINES) == OFFERED


def test_a_report_of_something_else_is_refused() -> None:
    expected = golden(looped(), PROMPTS, (1,))
    with pytest.raises(InputError, match="the report has prompt 0 at R = 2, which the golden file has not"):
        compare(expected, golden(looped(), PROMPTS, (2,)))
    with pytest.raises(InputError, match="golden prompts have 2 or more"):
        golden(looped(), [[1]], (1,))


def test_the_command_writes_and_checks(tmp_path: Path) -> None:
    file, bad = tmp_path / "golden.json", tmp_path / "bad.json"

    def run(*arguments: object) -> Any:
        return CliRunner().invoke(conform_command, ["demo", *map(str, arguments)])

    done = run("--write", file, "--recurrence", "1,2")
    assert done.exit_code == 0, done.output
    assert "12 prompts at R = 1, 2" in done.output
    done = run("--golden", file, "--engine", "unrolled")
    assert done.exit_code == 0, done.output
    assert "unrolled conforms: 12 prompts at R = 1, 2; logits, slots, tokens compared" in done.output
    report = json.loads(file.read_text())
    del report["checksum"]
    report["runs"][13]["logits"][1]["values"][0] += 1
    bad.write_text(json.dumps(report))
    done = run("--golden", file, "--report", bad)
    assert done.exit_code == 1
    assert "differs, first in the logits at R = 2, pass 2, prompt 1: 1" in done.output
    assert "give --write FILE, or --engine NAME" in run().output


def test_json_is_refused_where_nothing_is_compared(tmp_path: Path) -> None:
    file = tmp_path / "golden.json"
    done = CliRunner().invoke(conform_command, ["demo", "--write", str(file), "--json"])
    assert done.exit_code == 2
    assert "--json prints what differs; --write compares nothing" in done.output
    assert not file.exists()
