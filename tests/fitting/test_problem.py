"""The residuals and their exact derivatives, in search coordinates."""

import numpy as np
import pytest

from loopscale.core.errors import InputError
from loopscale.fitting import simulate_sweep
from loopscale.fitting.problem import build_problem
from loopscale.scaling import MAPPINGS, OUTER_LAWS, outer_law, published
from loopscale.scaling import mapping as find_mapping

SWEEP = simulate_sweep(tokens=(1e11, 3e11))


def problem(outer="joint-moe", mapping="sparsity-conditional", fixed=None, bounds=None):
    """Pose a form on the simulated sweep."""
    return build_problem(SWEEP, outer_law(outer), find_mapping(mapping), fixed or {}, bounds or {})


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("outer", OUTER_LAWS)
def test_derivatives_equal_central_differences(outer, mapping):
    posed = problem(outer, mapping)
    u = posed.lower + posed.width * np.random.default_rng(1).uniform(0.3, 0.6, len(posed.free))
    residuals, jacobian = posed.linearised(u)
    np.testing.assert_allclose(residuals, posed.residuals(u), rtol=1e-12)
    for k in range(len(u)):
        step = np.zeros(len(u))
        step[k] = 1e-6 * posed.width[k]
        slope = (posed.residuals(u + step) - posed.residuals(u - step)) / (2 * step[k])
        np.testing.assert_allclose(jacobian[k], slope, rtol=1e-4, atol=1e-6)


def test_several_points_at_once_are_the_points_one_by_one():
    posed = problem()
    u = posed.lower + posed.width * np.random.default_rng(2).uniform(0.3, 0.6, (3, len(posed.free)))
    residuals, jacobian = posed.linearised(u)
    for k in range(3):
        alone = posed.linearised(u[k])
        np.testing.assert_allclose(residuals[k], alone[0], rtol=1e-13)
        np.testing.assert_allclose(jacobian[k], alone[1], rtol=1e-12)


def test_residuals_are_those_of_the_law():
    posed, law = problem(), published()
    u = posed.point(law.coefficients)
    np.testing.assert_allclose(posed.residuals(u), np.log(law(SWEEP.points) / SWEEP.loss), atol=1e-14)
    assert posed.coefficients(u) == pytest.approx(dict(law.coefficients), rel=1e-14)


def test_what_is_fixed_keeps_its_value_and_is_not_varied():
    posed = problem(fixed={"theta": 0.25})
    assert "theta" not in posed.free_names
    assert posed.coefficients(posed.lower)["theta"] == 0.25


def test_holding_coefficients_leaves_the_others_free():
    posed = problem()
    u = posed.point(published().coefficients)
    held = np.array([name == "c" for name in posed.free_names])
    smaller = posed.with_fixed(held, u)
    np.testing.assert_allclose(smaller.residuals(u[~held]), posed.residuals(u), atol=1e-15)


def test_effective_experts_never_divide_by_zero_anywhere_in_the_box():
    posed = problem()
    corners = np.where(np.random.default_rng(0).random((200, len(posed.free))) < 0.5, posed.lower, posed.upper)
    x = posed.vectors(corners)
    assert (x[:, posed.names.index("E_start")] < x[:, posed.names.index("E_max")]).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fixed": {"kapa1": 1.0}}, r"fixed: coefficient 'kapa1' is unknown \(did you mean 'kappa1'\?\)"),
        ({"bounds": {"phi": (0, 1)}}, "bounds: coefficient 'phi' is unknown"),
        ({"bounds": {"A": (1, 1)}}, "hold it with `fixed` A=VALUE"),
        ({"bounds": {"A": (0, np.inf)}}, "give a finite lower and a larger upper"),
        ({"bounds": {"kappa1": (0, 1)}}, "stay above zero"),
        ({"fixed": {"A": np.nan}}, "fixed: A is nan"),
        ({"fixed": {"A": 1.0}, "bounds": {"A": (0, 1)}}, "hold it or bound it"),
        ({"fixed": {"E_max": 1.5}, "bounds": {"E_start": (2, 3)}}, "leaves no room below E_max"),
        ({"fixed": {"E_start": 5.0}, "bounds": {"E_max": (2, 3)}}, "leaves no room above E_start"),
        ({"fixed": {"E_start": 5.0, "E_max": 4.0}}, "E_start is the smaller"),
    ],
)
def test_impossible_options_are_named(options, said):
    with pytest.raises(InputError, match=said):
        problem(**options)
