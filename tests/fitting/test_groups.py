"""Several data sets in one table: shared exponents, own offsets, and a group that must be named."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from loopscale.cli import main
from loopscale.core.errors import InputError
from loopscale.fitting import Observations, fit, fit_groups
from loopscale.fitting.grouped_law import GroupedLaw, Offsets
from loopscale.scaling import OUTER_LAWS, Form, Inputs, Points, find_law, mapping

SHARED = {"alpha": -0.34, "beta": -0.28}
SMALL, LARGE = (1e18, 3e18), (1e18, 3e18, 1e19, 3e19, 1e20)


def table(path: Path, groups: dict[str, tuple[float, float, float, tuple[float, ...]]], noise: float = 0.003) -> Path:
    """Write a table of isoFLOP sweeps: for each group A, B, c and its budgets."""
    random = np.random.default_rng(1)
    rows = []
    for name, (A, B, c, budgets) in groups.items():
        for C in budgets:
            for x in np.linspace(-1.2, 1.2, 6):
                N = float(np.sqrt(C / 120) * np.exp(x))
                D = C / 6 / N
                loss = c + A * (N / 1e9) ** SHARED["alpha"] + B * (D / 1e9) ** SHARED["beta"]
                rows.append([name, N, D, loss * np.exp(noise * random.standard_normal())])
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["recipe", "N", "D", "loss"], *rows])
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    groups = {"web": (0.5, 0.45, 1.8, LARGE), "code": (0.35, 0.32, 1.0, SMALL)}
    return table(tmp_path_factory.mktemp("groups") / "runs.csv", groups)


@pytest.mark.parametrize("offsets", list(Offsets))
@pytest.mark.parametrize("name", ["chinchilla", "joint-moe", "chinchilla+overfit"])
def test_derivatives_are_exact_and_a_groups_law_is_the_joint_one(name: str, offsets: Offsets) -> None:
    inner, random = OUTER_LAWS[name], np.random.default_rng(0)
    law = GroupedLaw(inner, 3, offsets)
    N, D = np.exp(random.uniform(-2, 2, 12)), np.exp(random.uniform(0, 3, 12))
    x = Inputs(N, D, np.tile([1.0, 4.0], 6), np.ones(12), 1.0, 0.0, U=D / 3, group=np.arange(12) % 3)
    c = law.typical(np.full(12, 2.5), N, D, x.E) | {"c_1": 1.1, "f_1": 0.8, "c_2": 1.4, "f_2": 1.3}
    c = {term.name: c[term.name] for term in law.coefficients}
    form = Form(law, mapping("none"))
    loss, by = form.gradient(c, x)
    assert loss == pytest.approx(form.loss(c, x), rel=1e-12)
    for term in c:
        step = 1e-6 * max(abs(c[term]), 1e-2)
        up, down = (form.loss(c | {term: c[term] + sign * step}, x) for sign in (1, -1))
        assert np.broadcast_to(by[term], loss.shape) == pytest.approx((up - down) / (2 * step), rel=1e-4, abs=1e-7), (
            term
        )
    for g in range(3):
        rows = x.group == g
        assert inner.loss_at(law.of_group(c, g), N[rows], x.rows(rows)) == pytest.approx(loss[rows], rel=1e-12)


def test_shared_exponents_and_own_offsets_are_found(runs: Path) -> None:
    found = fit_groups(runs, "recipe", resamples=20)
    assert list(found) == ["web", "code"]
    assert found.chosen.offsets == Offsets.BOTH.value
    web, code = found["web"], found["code"]
    for name, truth in SHARED.items():
        assert web.coefficients[name] == code.coefficients[name] == pytest.approx(truth, abs=0.05)
    assert web.coefficients["c"] == pytest.approx(1.8, abs=0.15)
    assert code.coefficients["c"] == pytest.approx(1.0, abs=0.15)
    assert code.coefficients["A"] / web.coefficients["A"] == pytest.approx(0.7, abs=0.05)
    assert len(code.observations) == 12
    assert code.spread is not None
    assert code.spread.frontier == pytest.approx(3e18)


def test_a_small_group_borrows_the_exponents_of_a_large_one(runs: Path) -> None:
    """Two budgets alone say little about ten times their compute; with the other group's exponents they do."""
    target = Points(np.array([5e8, 1e9]), np.array([3e9, 6e9]))
    truth = 1.0 + 0.35 * np.array([0.5, 1.0]) ** -0.34 + 0.32 * np.array([3.0, 6.0]) ** -0.28
    together = fit_groups(runs, "recipe", resamples=0)["code"].law(target)
    alone = fit(Observations.of(runs, keep="recipe == 'code'"), resamples=0).law(target)
    assert np.abs(together / truth - 1).max() < 0.02
    assert np.abs(together / truth - 1).max() < np.abs(alone / truth - 1).max()


@pytest.mark.parametrize(
    ("second", "expected"),
    [((0.5, 0.45, 1.8), Offsets.NONE), ((0.45, 0.405, 1.62), Offsets.FACTOR), ((0.5, 0.45, 1.3), Offsets.FLOOR)],
)
def test_the_simplest_form_that_predicts_is_chosen(
    tmp_path: Path, second: tuple[float, float, float], expected: Offsets
) -> None:
    groups = {"a": (0.5, 0.45, 1.8, LARGE), "b": (*second, LARGE[1:])}
    found = fit_groups(table(tmp_path / "two.csv", groups), "recipe", resamples=0)
    assert found.chosen.offsets == expected.value
    assert sum(form.chosen for form in found.forms) == 1
    assert "simplest" in found.summary()


def test_columns_that_are_no_groups_are_refused(runs: Path) -> None:
    with pytest.raises(InputError, match=r"no column 'recipes' \(did you mean 'recipe'\?\)"):
        fit_groups(runs, "recipes")
    with pytest.raises(InputError, match="has 42 values; groups are from 2 to 20"):
        fit_groups(runs, "loss")
    with pytest.raises(InputError, match="choose chinchilla or joint-moe"):
        fit_groups(runs, "recipe", outer="kaplan")
    few = Observations.of(runs, keep="recipe == 'web' or N < 4e7")
    with pytest.raises(InputError, match="group 'code' has 1 run"):
        fit_groups(few, "recipe")


def run(capsys: pytest.CaptureFixture[str], *line: str) -> tuple[int, str]:
    """Run a command; return its exit code and all that it printed."""
    try:
        code = main(list(line))
    except SystemExit as stop:
        code = stop.code
    printed = capsys.readouterr()
    return int(code or 0), printed.out + printed.err


def test_commands_need_to_be_told_the_group(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    law = str(tmp_path / "laws.json")
    code, text = run(capsys, "fit", str(runs), "--group", "recipe", "--resamples", "5", "--out", law)
    assert code == 0, text
    assert "as 2 groups of recipe" in text
    assert "--group web" in text
    assert all(len(line) <= 80 for line in text.splitlines() if law not in line)
    asked = ("predict", "--params", "4e8", "--tokens", "9e9", "--law", law)
    code, text = run(capsys, *asked)
    assert code == 2
    assert "say which with --group: web, code" in text
    code, text = run(capsys, *asked, "--group", "code", "--json")
    assert json.loads(text)["loss"] == pytest.approx(float(find_law(law, "code")(Points(4e8, 9e9))), rel=0.05)
    assert run(capsys, *asked, "--group", "cod")[0] == 2
    assert run(capsys, "plan", "--flops", "1e20", "--law", law, "--group", "web")[0] == 0
    assert run(capsys, "plan", "--flops", "1e20", "--group", "web")[0] == 2
    assert run(capsys, "forecast", law, "--flops", "1e19")[0] == 2
    assert run(capsys, "forecast", law, "--flops", "1e19", "--group", "code")[0] == 0
    code, text = run(capsys, "forecast", str(runs), "--flops", "1e19", "--group", "recipe")
    assert (code, "recipe=web" in text) == (2, True)
    assert run(capsys, "forecast", str(runs), "--flops", "1e19", "--group", "recipe=code", "--resamples", "5")[0] == 0
    with pytest.raises(InputError, match="say which with `group`: web, code"):
        find_law(law)


def test_what_is_held_in_all_groups_is_held_in_the_fit_of_each(runs: Path) -> None:
    result = fit_groups(runs, "recipe", fixed=SHARED, resamples=20)
    for own in result.fits.values():
        assert own.fixed == SHARED
        assert not set(SHARED) & set(own.free)
        assert own.law.coefficients["alpha"] == SHARED["alpha"]
    tied = fit_groups(runs, "recipe", tie={"beta": "alpha"}, resamples=0)
    assert all(own.tie and "beta" not in own.free for own in tied.fits.values())
