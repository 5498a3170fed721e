"""Laws that people write: exact derivatives, sensible defaults, and nothing in the text that could run."""

import pickle

import numpy as np
import pytest

from loopscale.core.errors import InputError
from loopscale.scaling import (
    BILLIONS,
    Expression,
    Inputs,
    Points,
    Role,
    ScalingLaw,
    Term,
    find_law,
    mapping,
    outer_law,
    published,
)

CHINCHILLA = "c + A/N**alpha + B/D**beta"
C = {"A": 0.8, "alpha": 0.2, "B": 3.4, "beta": 0.7, "c": 1.3}
N, D, E = np.array([0.05, 0.3, 1.0, 7.0]), np.array([3.0, 100.0, 500.0, 2000.0]), np.array([1.0, 2.0, 8.0, 64.0])


def test_an_expression_is_the_law_it_writes():
    law, built_in = Expression(CHINCHILLA), outer_law("chinchilla")
    signed = C | {"alpha": -0.2, "beta": -0.7}
    np.testing.assert_allclose(law.loss(C, N, D, E), built_in.loss(signed, N, D, E), rtol=1e-14)
    loss, by, by_N = law.gradient(C, N, D, E)
    expected, by_built_in, by_N_built_in = built_in.gradient(signed, N, D, E)
    np.testing.assert_allclose(loss, expected, rtol=1e-14)
    np.testing.assert_allclose(by_N, by_N_built_in, rtol=1e-13)
    for name, slope in by.items():
        sign = -1 if name in ("alpha", "beta") else 1
        np.testing.assert_allclose(np.broadcast_to(slope, N.shape), sign * by_built_in[name], rtol=1e-13)


@pytest.mark.parametrize(
    ("expression", "values"),
    [
        ("c + A*N**-alpha*E**delta + B/D**(beta + zeta*log(E))",
         {"c": 1.3, "A": 0.8, "alpha": 0.2, "delta": -0.1, "B": 3.4, "beta": 0.6, "zeta": 0.05}),
        ("c + A/(N + k*sqrt(R))**alpha + B*exp(-b*log10(D))",
         {"c": 1.0, "A": 1.0, "k": 0.3, "alpha": 0.3, "B": 2.0, "b": 0.2}),
        ("c + A/N**a + B/(U*(1 + r*(1 - exp(-(D/U - 1)/r))))**b",
         {"c": 1.0, "A": 1.0, "a": 0.3, "B": 2.0, "r": 15.0, "b": 0.3}),
        ("(A/N**0.5 + B/D)**0.4 * tanh(k)", {"A": 30.0, "B": 50.0, "k": 1.5}),
    ],
)  # fmt: skip
def test_derivatives_of_any_expression_equal_the_complex_step(expression, values):
    law, x = Expression(expression), Inputs(N, D, E, np.array([1.0, 2.0, 3.0, 4.0]), 1.0, 0.0, D / 3)
    assert {term.name for term in law.coefficients} == set(values)
    loss, by, by_N = law.gradient_at(values, N, x)
    np.testing.assert_allclose(loss, law.loss_at(values, N, x), rtol=1e-14)
    for name, value in values.items():
        step = law.loss_at({**values, name: value + 1e-30j}, N, x).imag / 1e-30
        np.testing.assert_allclose(np.broadcast_to(by[name], N.shape), step, rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(by_N, law.loss_at(values, N + 1e-30j, x).imag / 1e-30, rtol=1e-10)


def test_coefficients_are_described_by_where_they_stand():
    law = Expression("c + A*N**alpha + B/D**beta * E**w", bounds={"w": (-1, 0.5)})
    found = {term.name: (term.term, term.role, term.lower, term.upper) for term in law.coefficients}
    assert found == {
        "c": (Term.IRREDUCIBLE, Role.SHAPE, 0.0, 10.0),
        "A": (Term.SIZE, Role.SCALE, 1e-6, 1e4),
        "alpha": (Term.SIZE, Role.EXPONENT, -2.0, 0.0),
        "B": (Term.EXPERTS, Role.SCALE, 1e-6, 1e4),
        "beta": (Term.EXPERTS, Role.EXPONENT, 0.0, 2.0),
        "w": (Term.EXPERTS, Role.EXPONENT, -1.0, 0.5),
    }
    assert law.uses_experts
    assert law.uses_tokens


def test_a_search_starts_near_the_observed_losses():
    law, loss = Expression(CHINCHILLA), np.array([4.3, 2.5, 2.2, 1.9])
    start = law.typical(loss, N, D, E)
    assert np.log(law.loss(start, N, D, E) / loss) == pytest.approx(0, abs=0.6)


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("__import__('os').system('true')", "holds no"),
        ("c + N.__class__", "neither a number, a name"),
        ("c + A*N[0]", "neither a number, a name"),
        ("c + (lambda: A)() / N", "neither a number, a name"),
        ("c + A if N else D", "neither a number, a name"),
        ("c + A/N**alpha; D", "cannot be read"),
        ("c + A/N^alpha", "write a power with"),
        ("c + A*exq(N)", "did you mean 'exp'"),
        ("c + A*log(N, 2)", "each of one argument"),
        ("c + exp + A/N", "cannot be the name"),
        ("c + α/N", "cannot be the name"),
        ("c + A/N + 1/0", "divides by zero"),
        ("c + A/N + log(-1)", "leaves the real numbers"),
        ("c + A/N**alpha + 9**9**9**9 * B / D", "overflows"),
        ("c + A/N**alpha + exp(exp(99)) * B / D", "overflows"),
        ("1/N + 2/D", "holds no coefficient"),
        ("c + A", "holds no N and no D"),
        ("c + A/N" + "+1" * 300, "at most 500"),
        ("c + A/N + True", "neither a number"),
        ("c + A/N + 'x'", "neither a number"),
        ("(" * 300 + "N" + ")" * 300, "500|cannot be read"),
    ],
)
def test_anything_but_arithmetic_is_refused_in_a_sentence(expression, sentence):
    with pytest.raises(InputError, match=sentence):
        Expression(expression)


@pytest.mark.parametrize(
    ("bounds", "sentence"), [({"x": (0, 1)}, "not in the expression"), ({"A": (2, 1)}, "larger upper bound")]
)
def test_bounds_are_checked(bounds, sentence):
    with pytest.raises(InputError, match=sentence):
        Expression(CHINCHILLA, bounds)


def test_a_written_law_is_a_law_like_any_other(tmp_path):
    outer = Expression(CHINCHILLA, bounds={"A": (1e-3, 10)})
    law = ScalingLaw(
        outer, mapping("bounded"), C | {"kappa1": 0.4, "kappa2": 1.5}, BILLIONS, "without-embeddings", "mine"
    )
    points = Points(np.array([2e8, 8e8]), 1e11, 3, loop=1e8)
    assert np.all(law(points) < law(Points(np.array([2e8, 8e8]), 1e11)))
    value, gradient = law.value_and_gradient(points)
    assert gradient.shape == (2, 7)
    law.save(tmp_path / "law.json")
    again = find_law(tmp_path / "law.json")
    assert again == law
    assert again.outer.coefficients == outer.coefficients
    np.testing.assert_array_equal(again(points), value)
    assert "in units of 1e+09" in law.equation()
    assert pickle.loads(pickle.dumps(law.outer)) == law.outer


def test_an_expression_serves_wherever_the_name_of_a_law_does():
    assert outer_law(CHINCHILLA) == Expression(CHINCHILLA)
    assert outer_law(published().outer) is published().outer
    with pytest.raises(InputError, match="did you mean 'chinchilla\\+repetition'"):
        outer_law("chinchila+repetition")


def test_a_coefficient_of_an_expression_may_have_the_name_of_one_in_another_law():
    """Laws of experts want E_start below E_max; an expression may use either name alone."""
    outer = Expression("c + A/N**E_start")
    law = ScalingLaw(outer, mapping("none"), {"c": 1.0, "A": 2.0, "E_start": 0.3}, BILLIONS, "without-embeddings")
    assert law(Points(1e9, 1e11)) == pytest.approx(3.0)
