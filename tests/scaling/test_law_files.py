"""A law goes into a file and comes back the same, with what is known of its origin; older files are still read."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest

from loopscale.core.errors import InputError
from loopscale.scaling import (
    MAPPINGS,
    OUTER_LAWS,
    PUBLISHED,
    RAW,
    Counting,
    Expression,
    FittedRange,
    Points,
    ScalingLaw,
    Spread,
    find_law,
    mapping,
    outer_law,
    published,
    with_repetition,
    with_uncertainty,
)
from loopscale.scaling.extensions import EXTENSIONS

COEFFICIENTS = {"E_start": 2.0, "E_max": 300.0}


def same(first, second):
    """Every field, resamples included, which equality leaves out."""
    for field in fields(ScalingLaw):
        one, other = getattr(first, field.name), getattr(second, field.name)
        if field.name == "resamples" and one is not None:
            np.testing.assert_array_equal(one, other)
        else:
            assert one == other, field.name
    return True


def example(outer, recurrence):
    form = (*outer.coefficients, *recurrence.coefficients)
    values = {c.name: COEFFICIENTS.get(c.name, 0.5 if c.positive else 0.25) for c in form}
    return ScalingLaw(
        outer, recurrence, values, RAW, Counting.WITH_EMBEDDINGS, "mine", "fitted to runs.csv", "a note; of two parts",
        fitted=True, degenerate=("c ended on its bound; 0", "only two sizes"), rmse=0.01, noise=0.008,
        spread=Spread(0.01, 0.02, 1e21, 3, 0.005),
        fitted_range=FittedRange((1e8, 1e9), (None, 1e12), (1, 16), (1, 8), (1, 4)),
        resamples=np.tile(list(values.values()), (3, 1)), resampled_by="3 made up",
    )  # fmt: skip


@pytest.mark.parametrize("outer", OUTER_LAWS)
@pytest.mark.parametrize("recurrence", MAPPINGS)
def test_every_form_with_every_field_comes_back_from_its_plain_values(outer, recurrence):
    law = example(outer_law(outer), mapping(recurrence))
    assert same(ScalingLaw.from_dict(json.loads(json.dumps(law.to_dict()))), law)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_laws_and_what_is_made_of_them_come_back(name):
    for law in (with_uncertainty(name), with_repetition(with_uncertainty(name)), published(name).at_one_expert()):
        assert same(ScalingLaw.from_dict(law.to_dict()), law)


WRITTEN = "c + A/N**alpha + B/D**beta"


@pytest.mark.parametrize("extended", [lambda outer: outer, *EXTENSIONS.values()])
def test_an_expression_comes_back_with_its_bounds_and_its_extension(extended):
    law = example(extended(Expression(WRITTEN, {"A": (1e-3, 10)})), mapping("bounded"))
    again = ScalingLaw.from_dict(law.to_dict())
    assert same(again, law)
    assert again.terms == law.terms
    assert again.table().columns["raw"] == law.table().columns["raw"]


def test_an_extension_is_found_by_name_on_any_outer_law_but_not_twice():
    assert outer_law("kaplan+repetition") == EXTENSIONS["repetition"](outer_law("kaplan"))
    with pytest.raises(InputError, match="depends on unique tokens already"):
        EXTENSIONS["overfit"](outer_law("kaplan+repetition"))
    with pytest.raises(InputError, match=r"outer law 'kaplan.repetitions' is not known"):
        outer_law("kaplan+repetitions")


def test_what_a_law_says_of_itself_does_not_depend_on_the_words_of_its_note_and_source():
    law = replace(published(), source="fitted to runs.csv", note="degenerate: this is a note")
    assert law.degenerate == ()
    assert law.uncertainty == "not published"
    poor = replace(law, fitted=True, degenerate=["only two sizes"])
    assert poor.degenerate == ("only two sizes",)
    assert poor.uncertainty == "not estimated: the law was fitted without resampling"


def version_1(**changes):
    data = published().to_dict()
    del data["fitted"], data["degenerate"]
    return data | {"schema": 1} | changes


def test_a_law_file_of_version_1_is_read_with_what_it_told_in_prose(tmp_path):
    told = version_1(source="fitted to runs.csv", note="lack of fit: x; degenerate: only two sizes; on a bound: c")
    (tmp_path / "law.json").write_text(json.dumps(told))
    law = find_law(tmp_path / "law.json")
    assert (law.fitted, law.degenerate) == (True, ("only two sizes",))
    assert (law.source, law.note) == ("fitted to runs.csv", "lack of fit: x; on a bound: c")
    (tmp_path / "fit.json").write_text(json.dumps({"kind": "fit", "schema": 1, "law": told, "degenerate": ["x"]}))
    assert find_law(tmp_path / "fit.json") == law
    assert ScalingLaw.from_dict(version_1()) == published()


@pytest.mark.parametrize("field", ["note", "source"])
def test_a_broken_law_file_of_version_1_is_refused_by_name(field):
    with pytest.raises(InputError, match=f"field '{field}' is 3; it should be text"):
        ScalingLaw.from_dict(version_1(**{field: 3}))


def test_a_span_of_the_fitted_range_may_be_null_in_a_file_and_is_ordered():
    data = published().to_dict() | {"range": {"size": None, "tokens": [None, 1e12]}}
    assert ScalingLaw.from_dict(data).fitted_range == FittedRange(tokens=(None, 1e12))
    with pytest.raises(InputError, match="range: size is from 2 to 1; the lowest comes first"):
        FittedRange(size=(2, 1))


@pytest.mark.parametrize(("field", "value"), [("noise", 1e6), ("growth", 11.0), ("drift", -2.0), ("frontier", 1e-300)])
def test_a_spread_that_no_sweep_has_is_refused(field, value):
    """Its interval would overflow."""
    stored = published().to_dict() | {"spread": {"noise": 0.01, "growth": 0.02, "frontier": 1e21} | {field: value}}
    with pytest.raises(InputError, match=field):
        ScalingLaw.from_dict(stored)
    widest = {"noise": 10.0, "growth": 10.0, "frontier": 1.0, "drift": -1.0}
    low, high = ScalingLaw.from_dict(stored | {"spread": widest}).predictive_interval(
        Points(1e9, 1e12, loop=5e8, total=8e9, experts=8.0, recurrence=2.0)
    )
    assert 0 <= low < high < float("inf")
