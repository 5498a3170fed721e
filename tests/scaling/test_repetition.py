"""Overfitting of stored weights: more weights overfit on repeated tokens, more passes do not."""

import numpy as np
import pytest

from loopscale.scaling import BILLIONS, Counting, Points, ScalingLaw, mapping, outer_law

VALUES = {"A": 0.35, "alpha": -0.26, "B": 0.42, "beta": -0.49, "c": 2.3, "R_D": 15.4, "O": 0.03, "nu": 0.6}
CURVE = {"kappa1": 2.0, "kappa2": 1.9}


def law(outer, values=VALUES):
    return ScalingLaw(
        outer_law(outer), mapping("bounded"), {**values, **CURVE}, BILLIONS, Counting.WITHOUT_EMBEDDINGS, name=outer
    )


def points(passes, size=2e8, unique=1e8):
    return Points(size, 1e9, passes, 1.0, 0.4 * size, size, unique)


def test_on_fresh_tokens_it_is_the_law_without_overfitting():
    plain = law("chinchilla", {name: value for name, value in VALUES.items() if name not in ("R_D", "O", "nu")})
    fresh = points([1, 2, 4], unique=1e9)
    np.testing.assert_allclose(law("chinchilla+stored-overfit")(fresh), plain(fresh), rtol=1e-14)


def test_passes_gain_the_same_on_repeated_tokens_as_on_fresh_ones():
    stored = law("chinchilla+stored-overfit")
    repeated, fresh = stored(points([1, 6])), stored(points([1, 6], unique=1e9))
    assert np.diff(repeated) == pytest.approx(np.diff(fresh), rel=1e-12)
    assert np.all(repeated > fresh)
    passes_overfit = law("chinchilla+overfit", {name: value for name, value in VALUES.items() if name != "R_D"})
    assert np.diff(passes_overfit(points([1, 6]))) > np.diff(repeated)


def test_weights_overfit():
    sizes = np.array([5e7, 2e8, 1e9, 4e9])
    losses = law("chinchilla+stored-overfit")(points(1, sizes, unique=1e8))
    assert np.argmin(losses) in (1, 2)


@pytest.mark.parametrize("outer", ["chinchilla+stored-overfit"])
def test_derivatives_equal_central_differences(outer):
    stored, at = law(outer), points([1, 3])
    _, jacobian = stored.value_and_gradient(at)
    for column, name in enumerate(stored.names):
        step = 1e-6 * abs(stored.coefficients[name])
        around = [
            ScalingLaw(
                stored.outer, stored.mapping, {**stored.coefficients, name: stored.coefficients[name] + sign * step},
                BILLIONS, Counting.WITHOUT_EMBEDDINGS,
            )(at)
            for sign in (1, -1)
        ]  # fmt: skip
        np.testing.assert_allclose(jacobian[:, column], (around[0] - around[1]) / (2 * step), rtol=1e-5, atol=1e-9)


def test_it_saves_loads_and_keeps_its_value_in_other_units(tmp_path):
    stored = law("chinchilla+stored-overfit")
    stored.save(tmp_path / "law.json")
    assert ScalingLaw.load(tmp_path / "law.json") == stored
    raw = stored.in_units(type(BILLIONS)(1.0, 1.0))
    np.testing.assert_allclose(raw(points([1, 4])), stored(points([1, 4])), rtol=1e-12)
