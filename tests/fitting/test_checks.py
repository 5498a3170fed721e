"""Data that cannot carry a law are refused, with what can be fitted instead."""

from dataclasses import replace

import numpy as np
import pytest
from plain import fit

from loopscale.core.errors import InputError
from loopscale.fitting import simulate_sweep
from loopscale.scaling import Points

SWEEP = simulate_sweep()


def rows(**wanted):
    """Return the rows of the sweep with one value of an axis."""
    mask = np.ones(len(SWEEP), dtype=bool)
    for axis, value in wanted.items():
        mask &= getattr(SWEEP.points, axis) == value
    return SWEEP.where(mask)


def without(field):
    """Return the sweep without an optional count."""
    p = SWEEP.points
    given = {name: getattr(p, name) for name in ("active", "tokens", "recurrence", "experts", "loop", "total")}
    return replace(SWEEP, points=Points(**(given | {field: None})))


def moe(data, *, outer="joint-moe", mapping="sparsity-conditional", **options):
    """Fit the full looped MoE law unless another is named."""
    return fit(data, outer=outer, mapping=mapping, **options)


def refused(data, **options):
    """Return what is said of the data."""
    with pytest.raises(InputError) as caught:
        moe(data, **options)
    return str(caught.value)


def test_a_loop_law_needs_looped_rows():
    said = refused(rows(recurrence=1))
    assert "no row has R > 1" in said
    assert "choose `mapping` none" in said
    assert moe(rows(recurrence=1), mapping="none").degenerate == ()


def test_a_loop_law_needs_rows_of_two_recurrences():
    assert "every row has R = 4" in refused(rows(recurrence=4))


def test_an_expert_law_needs_two_expert_counts():
    said = refused(rows(experts=1))
    assert "every row has E = 1" in said
    assert "choose `outer` chinchilla with `mapping` bounded" in said
    assert fit(rows(experts=1), outer="chinchilla", mapping="bounded").degenerate == ()


def test_a_data_term_needs_two_token_counts():
    said = refused(rows(tokens=SWEEP.points.tokens[0]))
    assert "every row has D = 100B" in said
    assert "`outer` routed" in said
    assert "hold B and beta with `fixed`" in said


def test_a_size_term_needs_two_sizes():
    said = refused(rows(active=SWEEP.points.active[0]))
    assert "every row has N_act = 173M" in said
    assert "hold A and alpha" in said


def test_one_run_is_not_a_sweep_but_its_tokens_can_be_fitted():
    one = SWEEP.where(SWEEP.run == SWEEP.run[0])
    said = refused(one, outer="chinchilla", mapping="none")
    assert "all 12 rows are of one run ('0.3B-E1-R1')" in said
    held = fit(one, outer="chinchilla", mapping="none", fixed={"A": 0.8, "alpha": -0.2})
    assert held.free == ("B", "beta", "c")


def test_fewer_rows_than_coefficients_are_refused():
    few = SWEEP.where(np.linspace(0, len(SWEEP) - 1, 12).astype(int))
    said = refused(few)
    assert "12 rows cannot determine 14 coefficients (A, alpha" in said
    assert "`outer` chinchilla with `mapping` none, which has 5" in said


def test_what_is_held_need_not_be_in_the_data():
    held = {name: SWEEP_LAW[name] for name in ("B", "beta", "omega", "zeta")}
    assert moe(rows(tokens=SWEEP.points.tokens[0]), fixed=held).law.rmse < 0.005


def test_the_column_that_a_mapping_needs_is_named():
    assert "needs N_loop" in refused(without("loop"))
    said = refused(without("total"))
    assert "needs N_total" in said
    assert "`mapping` bounded" in said
    assert fit(without("total"), mapping="bounded").law.mapping.name == "bounded"


def test_nothing_to_fit_is_said():
    assert "there are no rows" in refused(SWEEP.where(np.zeros(len(SWEEP), dtype=bool)))
    fixed = {name: SWEEP_LAW[name] for name in ("A", "alpha", "B", "beta", "c")}
    assert "every coefficient is held" in refused(SWEEP, outer="chinchilla", mapping="none", fixed=fixed)


SWEEP_LAW = fit(SWEEP).law.coefficients
