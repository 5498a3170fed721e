"""Compute as people have it on the command line: devices and days, device-hours, money."""

import json

import pytest

from loopscale.cli import main


def run(capsys, *argv: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(argv)
    return (stop.value.code or 0, *capsys.readouterr())


@pytest.mark.parametrize(
    ("argv", "flops"),
    [
        (("--gpus", "8", "--device", "h100", "--days", "14"), 8 * 14 * 86400 * 989e12 * 0.4),
        (("--gpu-hours", "1000", "--device", "a100", "--utilisation", "50%"), 1000 * 3600 * 312e12 * 0.5),
        (("--dollars", "5000", "--price", "2.5", "--device", "h100"), 2000 * 3600 * 989e12 * 0.4),
    ],
)
def test_budgets_are_taken_as_people_have_them(capsys, argv, flops):
    code, out, _ = run(capsys, "plan", *argv, "--for", "phone", "--json")
    assert code == 0
    budget = json.loads(out)["budget"]
    # Devices run the real cost; blocks that they recompute leave less of it for tokens.
    assert "flops" not in budget
    assert flops / 4 * 3 <= budget["real_flops"] <= flops * (1 + 1e-9)
    assert (budget["memory"], budget["bits"]) == (3e9, 4)
    _, text, _ = run(capsys, "plan", *argv, "--for", "phone", "--bits", "8")
    assert argv[argv.index("--device") + 1] in text
    assert "device-hours" in run(capsys, "plan", *argv, "--for", "phone", "--bits", "8", "--verbose")[1]
    assert "8-bit weights" in text


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("--gpus", "8"), "give --device and --days with --gpus"),
        (("--gpus", "8", "--device", "h100"), "give --days with --gpus"),
        (("--dollars", "100", "--device", "h100"), "give --price with --dollars"),
        (("--flops", "1e21", "--days", "3"), "give --gpus with --days"),
        (("--gpus", "8", "--device", "h10", "--days", "3"), "did you mean 'h100'"),
        (("--flops", "1e21", "--memory", "16"), "write a unit, like '16GB'"),
        (("--gpu-hours", "10", "--device", "h100", "--utilisation", "40"), "write it like 0.4 or 40%"),
        (("--flops", "1e21", "--for", "fridge"), "phone"),
    ],
)
def test_half_a_budget_is_refused_with_what_is_missing(capsys, argv, sentence):
    code, out, err = run(capsys, "plan", *argv)
    assert (code, out) == (2, "")
    assert sentence in err
