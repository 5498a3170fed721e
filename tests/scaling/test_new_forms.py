"""A new recurrence mapping or outer law is one class: nothing else has to be told of it."""

import numpy as np
import pytest

import loopscale as ls
from loopscale.architecture import rung
from loopscale.core.errors import InputError
from loopscale.fitting import simulate_sweep
from loopscale.scaling import (
    BILLIONS,
    MAPPINGS,
    OUTER_LAWS,
    Coefficient,
    Counting,
    OuterLaw,
    RecurrenceMapping,
    Role,
    ScalingLaw,
    Term,
    find_law,
    mapping,
    outer_law,
)
from loopscale.scaling.outer import Gradient


@pytest.fixture
def new_forms():
    """Two forms that are defined for one test, and forgotten after it."""
    known = [(registry, dict(registry)) for registry in (MAPPINGS, OUTER_LAWS)]

    class Logarithmic(RecurrenceMapping):
        """R passes are worth rate ln R loop blocks."""

        name = "logarithmic"
        title = "logarithmic recurrence"
        coefficients = (
            Coefficient("rate", 1e-3, 5.0, "gain of the first e passes", Term.RECURRENCE, typical=0.3, positive=True),
        )

        def gain(self, c, R, m):
            return c["rate"] * np.log(R) + np.zeros(np.shape(m))

        def gain_and_gradient(self, c, R, m):
            return self.gain(c, R, m), {"rate": np.log(R) + np.zeros(np.shape(m))}

        def asymptote(self, c, m):
            return np.full(np.shape(m), np.inf)

    class OneExponent(OuterLaw):
        """L = A N^-p + B D^-p + c: size and data share an exponent."""

        name = "one-exponent"
        title = "law of one exponent"
        coefficients = (
            Coefficient("A", 1e-6, 1e3, "size of the parameter term", Term.SIZE, Role.SCALE),
            Coefficient("B", 1e-6, 1e4, "size of the data term", Term.DATA, Role.SCALE),
            Coefficient("p", 0.0, 2.0, "exponent of both", Term.SIZE, Role.EXPONENT, 0.3),
            Coefficient("c", 0.0, 10.0, "irreducible loss", Term.IRREDUCIBLE),
        )

        def loss(self, c, N, D, E):
            return c["A"] * N ** -c["p"] + c["B"] * D ** -c["p"] + c["c"] + np.zeros(np.shape(E))

        def gradient(self, c, N, D, E):
            size, data = c["A"] * N ** -c["p"], c["B"] * D ** -c["p"]
            loss = self.loss(c, N, D, E)
            by = {
                "A": size / c["A"],
                "B": data / c["B"],
                "p": -size * np.log(N) - data * np.log(D),
                "c": np.ones(np.shape(loss)),
            }
            return Gradient(loss, by, -c["p"] * size / N)

        def rescaled(self, c, parameters, tokens):
            return {**c, "A": c["A"] * parameters ** -c["p"], "B": c["B"] * tokens ** -c["p"]}

        def token_slope(self, c, N, D, E):
            return -c["p"] * c["B"] * D ** (-c["p"] - 1) + np.zeros(np.shape(N))

        def equation(self, c):
            return f"L = {c['c']:.4g} + {c['A']:.4g} / N^{c['p']:.4g} + {c['B']:.4g} / D^{c['p']:.4g}"

    yield Logarithmic, OneExponent
    for registry, before in known:
        registry.clear()
        registry.update(before)


def test_two_new_classes_are_fitted_saved_loaded_and_planned_with(new_forms, tmp_path):
    values = {"A": 0.5, "B": 0.9, "p": 0.35, "c": 1.6, "rate": 0.4}
    truth = ScalingLaw(
        outer_law("one-exponent"), mapping("logarithmic"), values, BILLIONS, Counting.WITHOUT_EMBEDDINGS, rmse=1e-3
    )
    assert (type(truth.mapping), type(truth.outer)) == new_forms
    model = rung("1.0B", experts=1)
    gained = truth.gain(model.points(3e11, [1, 2, 4]))
    np.testing.assert_allclose(gained, 0.4 * np.log([1, 2, 4]))

    fitted = ls.fit(simulate_sweep(truth, noise=1e-5), outer="one-exponent", mapping="logarithmic", resamples=20)
    assert dict(fitted.law.coefficients) == pytest.approx(values, rel=1e-2)
    fitted.save(tmp_path / "fit.json")
    fitted.law.save(tmp_path / "law.json")
    assert find_law(tmp_path / "fit.json") == find_law(tmp_path / "law.json") == fitted.law
    assert "law of one exponent, logarithmic recurrence" in fitted.summary()

    budget = {"flops": 5e21, "memory": "1GB", "bits": 4, "law": tmp_path / "law.json", "extrapolate": True}
    choice = ls.plan(**budget).choice
    by_hand = truth.points(choice.active, choice.tokens, choice.recurrence, choice.experts, choice.loop, choice.total)
    assert choice.loss == pytest.approx(float(truth(by_hand)), rel=1e-4)
    assert choice.recurrence > 1
    assert ls.plan(**budget, unique_tokens=1e11).choice.loss > choice.loss


def test_they_are_gone_after_the_test_that_defined_them():
    with pytest.raises(InputError, match="is not known"):
        mapping("logarithmic")
    with pytest.raises(InputError, match="is not known"):
        outer_law("one-exponent")
