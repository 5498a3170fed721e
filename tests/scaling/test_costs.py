"""Costs: one formula each, whole numbers kept whole, and every package in agreement with it."""

import numpy as np
import pytest

from loopscale.architecture import rung
from loopscale.scaling import MAPPINGS, OUTER_LAWS, Points, Role, Term, costs
from loopscale.scaling.form import effective


def test_a_loop_is_paid_for_once_per_pass():
    assert costs.unrolled(100, 60, 1) == 100
    assert costs.unrolled(100, 60, 3) == 220
    assert costs.train_flops(220, 10) == 13_200
    assert costs.inference_flops(220) == 440
    assert effective(100, 60, 0.5) == 130


def test_serving_is_paid_from_the_training_budget():
    flops = costs.train_flops(220, 1000) + 90 * costs.inference_flops(220)
    assert costs.tokens_for(flops, 220, served=90) == pytest.approx(1000)


def test_points_and_architectures_count_alike():
    model = rung("0.3B", experts=8)
    points = model.points(np.array([1e9, 5e9]), 4)
    np.testing.assert_array_equal(points.unrolled, model.unrolled(4))
    np.testing.assert_allclose(points.train_flops, model.train_flops_per_token(4) * points.tokens)
    assert isinstance(model.unrolled(4), int)


def test_points_that_do_not_loop_need_no_loop_block():
    assert Points(active=2e9, tokens=1e9).unrolled == 2e9


@pytest.mark.parametrize("form", [*OUTER_LAWS.values(), *MAPPINGS.values()], ids=lambda form: form.name)
def test_every_coefficient_describes_itself(form):
    for c in form.coefficients:
        assert c.lower < c.upper
        assert c.meaning
        assert c.typical is None or c.lower <= c.typical <= c.upper
        assert c.neutral is None or c.lower <= c.neutral <= c.upper
        assert not c.positive or c.lower > 0
        assert c.published_sign == (-1 if c.name in ("alpha", "beta") else 1)
    assert all(c.term is Term.RECURRENCE for c in form.coefficients) == (form.name in MAPPINGS)


def test_a_law_is_typical_of_the_losses_it_is_started_on():
    N, D, E, loss = np.array([0.1, 1.0]), np.array([2.0, 20.0]), np.array([1.0, 8.0]), np.array([3.5, 2.5])
    for outer in OUTER_LAWS.values():
        values = outer.typical(loss, N, D, E)
        assert set(values) == {c.name for c in outer.coefficients}
        assert np.log(outer.loss(values, N, D, E) / loss) == pytest.approx(0, abs=0.5)
    assert [c.name for c in OUTER_LAWS["chinchilla"].coefficients if c.role is Role.SCALE] == ["A", "B"]
