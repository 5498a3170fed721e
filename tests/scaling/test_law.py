"""The whole law: reduced forms, gradients, units, resamples, ranges and files."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopscale.core.errors import InputError
from loopscale.scaling import (
    BILLIONS,
    MAPPINGS,
    PUBLISHED,
    RAW,
    Counting,
    Points,
    ScalingLaw,
    find_law,
    mapping,
    published,
)

EXTRA = {"phi": 0.46, "theta1": 0.3, "theta2": 0.35, "tail": 0.3}


def with_mapping(name: str) -> ScalingLaw:
    """Return the paper's outer law with another mapping."""
    paper = published()
    values = {**paper.coefficients, **EXTRA}
    form = mapping(name)
    names = [each.name for each in paper.outer.coefficients + form.coefficients]
    return ScalingLaw(paper.outer, form, {each: values[each] for each in names}, BILLIONS, paper.counts)


@st.composite
def any_points(draw, experts=None, recurrence=None):
    size = draw(st.integers(1, 5))
    array = lambda low, high: np.array(draw(st.lists(st.floats(low, high), min_size=size, max_size=size)))  # noqa: E731
    active = 10 ** array(7, 11)
    E = array(1, 64) if experts is None else np.full(size, float(experts))
    return Points(
        active=active,
        tokens=10 ** array(9, 13),
        recurrence=array(1, 16) if recurrence is None else float(recurrence),
        experts=E,
        loop=active * array(0, 1),
        total=active * (1 + (E - 1) * 0.8),
    )


@pytest.mark.parametrize("name", MAPPINGS)
def test_the_full_gradient_equals_central_differences(name):
    law = with_mapping(name)
    points = Points([2e8, 8e8], [1e11, 6e11], [3, 5], [8, 2], [1.4e8, 7e8], [1.2e9, 1.5e9])
    loss, jacobian = law.value_and_gradient(points)
    np.testing.assert_allclose(loss, law(points), rtol=1e-15)
    assert jacobian.shape == (2, len(law.names))
    for column, each in enumerate(law.names):
        step = 1e-6 * abs(law.coefficients[each])
        value = law.coefficients[each]
        around = [replace(law, coefficients={**law.coefficients, each: value + sign * step}) for sign in (1, -1)]
        slope = (around[0](points) - around[1](points)) / (2 * step)
        np.testing.assert_allclose(jacobian[:, column], slope, rtol=2e-6, atol=1e-9)


@given(any_points(experts=1))
def test_at_one_expert_the_law_is_its_dense_reduction(points):
    law = published()
    dense = law.at_one_expert()
    assert (dense.outer.name, dense.mapping.name) == ("chinchilla", "bounded")
    np.testing.assert_allclose(dense(points), law(points), rtol=1e-12)


@given(any_points(recurrence=1))
def test_at_one_pass_the_law_is_its_unlooped_reduction(points):
    law = published()
    flat = law.at_one_pass()
    assert (flat.outer.name, flat.mapping.name) == ("joint-moe", "none")
    np.testing.assert_allclose(flat(points), law(points), rtol=1e-12)


@given(any_points(experts=1, recurrence=1))
def test_at_one_expert_and_one_pass_the_law_is_chinchillas(points):
    law = published()
    plain = law.at_one_expert().at_one_pass()
    assert (plain.outer.name, plain.mapping.name) == ("chinchilla", "none")
    np.testing.assert_allclose(plain(points), law(points), rtol=1e-12)
    np.testing.assert_allclose(law.at_one_pass().at_one_expert()(points), law(points), rtol=1e-12)


@given(any_points(experts=1))
def test_the_routed_law_reduces_to_a_power_of_n(points):
    law = published("routed-hash-2022")
    np.testing.assert_allclose(law.at_one_expert()(points), law(points), rtol=1e-12)


@given(any_points())
def test_the_law_does_not_depend_on_the_units_it_is_written_in(points):
    for law in (published(), published("iso-depth-2026"), published("routed-s-base-2022")):
        other = law.in_units(RAW if law.units == BILLIONS else BILLIONS)
        np.testing.assert_allclose(other(points), law(points), rtol=1e-10)


@given(any_points())
def test_multiplier_effective_parameters_and_gain_are_one_quantity(points):
    law = published()
    effective = law.effective_parameters(points)
    np.testing.assert_allclose(effective, points.active + law.gain(points) * points.loop)
    np.testing.assert_allclose(law.multiplier(points), effective / points.active)
    assert np.all(law.multiplier(points) <= law.largest_multiplier(points) * (1 + 1e-12))


def test_resampled_laws_are_evaluated_at_once_and_follow_the_units():
    law = published()
    rows = np.array([list(law.coefficients.values())] * 3)
    rows[1, 0] *= 1.01
    rows[2, -1] *= 0.9
    many = ScalingLaw(law.outer, law.mapping, law.coefficients, law.units, law.counts, resamples=rows)
    points = Points(np.array([[2e8], [8e8]]), np.array([1e11, 2e11, 3e11]), 2, 4, 1e8, 2e9)
    losses = many.resampled(points)
    assert losses.shape == (3, 2, 3)
    for row, loss in zip(rows, losses, strict=True):
        one = ScalingLaw(law.outer, law.mapping, dict(zip(law.names, row, strict=True)), law.units, law.counts)
        np.testing.assert_allclose(loss, one(points), rtol=1e-14)
    np.testing.assert_allclose(many.in_units(RAW).resampled(points), losses, rtol=1e-10)


def test_a_law_says_where_it_extrapolates_axis_by_axis():
    law = published()
    points = Points([2e8, 2e9], 2e11, [2, 9], [8, 32], 1e8, 5e10)
    found = {axis: np.broadcast_to(flags, 2).tolist() for axis, flags in law.extrapolated(points).items()}
    assert found == {
        "size": [False, True],
        "tokens": [False, False],
        "experts": [False, True],
        "recurrence": [False, True],
    }


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_law_survives_its_file(name, tmp_path):
    law = published(name)
    law.save(tmp_path / "law.json")
    again = find_law(str(tmp_path / "law.json"))
    assert again == law
    assert law.source
    assert law.fitted_range.experts[1] is not None


def test_resamples_survive_the_file(tmp_path):
    law = published("chinchilla-2022")
    rows = np.tile(list(law.coefficients.values()), (4, 1))
    ScalingLaw(law.outer, law.mapping, law.coefficients, law.units, law.counts, resamples=rows).save(
        tmp_path / "a.json"
    )
    np.testing.assert_array_equal(ScalingLaw.load(tmp_path / "a.json").resamples, rows)


BROKEN = [
    (lambda d: d.pop("outer"), "field 'outer' is missing"),
    (lambda d: d.update(outer="chinchila"), "did you mean 'chinchilla'"),
    (lambda d: d.update(schema=99), "schema 99 is newer"),
    (lambda d: d.update(kind="plan"), "'law' file is needed"),
    (lambda d: d.update(colour="red"), "unknown field 'colour'"),
    (lambda d: d["coefficients"].pop("A"), "coefficient 'A' is missing"),
    (lambda d: d["coefficients"].update(AA=1), "coefficient 'AA' is unknown"),
    (lambda d: d["coefficients"].update(A="x"), "should be a number"),
    (lambda d: d["coefficients"].update(E_max=1.0), "E_start should be the smaller"),
    (lambda d: d["coefficients"].update(kappa2=-1.0), "above zero"),
    (lambda d: d["units"].update(parameters=0), "from 1 .raw counts."),
    (lambda d: d["units"].update(parameters=1e-308), "from 1 .raw counts."),
    (lambda d: d["units"].update(bytes=3), "unknown field 'bytes'"),
    (lambda d: d.update(counts="some"), "'without-embeddings' or 'with-embeddings'"),
    (lambda d: d.update(resamples=[[1, 2]]), "rows of 14 finite numbers"),
    (lambda d: d.update(resamples=[["x"]]), "should be a number"),
    (lambda d: d.update(range={"size": [2, 1]}), "lowest comes first"),
    (lambda d: d.update(range={"sizes": [1, 2]}), "did you mean 'size'"),
    (lambda d: d.update(rmse=-1), "0 or more"),
    (lambda d: d.update(rmse=10**400), "'rmse' is a number of more than 30 digits; it should be a finite number"),
    (lambda d: d["coefficients"].update(A=10**400), "field 'A' is a number of more than 30 digits"),
    (lambda d: d["units"].update(tokens=10**400), "finite number"),
    (lambda d: d.update(range={"size": [1, 10**400]}), "finite number"),
    (lambda d: d.update(note=json.loads("[" * 900 + "]" * 900)), "nested too deeply"),
    (lambda d: d.update(name=None), "field 'name' is None; it should be text"),
]


@pytest.mark.parametrize(("harm", "sentence"), BROKEN)
def test_a_broken_law_file_is_refused_by_name(harm, sentence, tmp_path):
    data = json.loads(json.dumps(published().to_dict()))
    harm(data)
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match=sentence) as error:
        ScalingLaw.load(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"active": -1.0}, "active .N_act. is -1.0"),
        ({"recurrence": 0.5}, "recurrence .R. is 0.5"),
        ({"experts": np.nan}, "experts .E. is nan"),
        ({"loop": 2e9}, "exceeds active"),
        ({"total": 1e8}, "below active"),
        ({"tokens": "many"}, "not a number"),
        ({"tokens": [1.0, 2.0], "recurrence": [1, 2, 3]}, "do not broadcast"),
    ],
)
def test_impossible_points_are_refused_by_name(values, sentence):
    good = {"active": 1e9, "tokens": 1e11, "recurrence": 2, "experts": 4, "loop": 8e8, "total": 3e9}
    with pytest.raises(InputError, match=sentence):
        Points(**{**good, **values})


def test_what_a_law_cannot_do_without_is_asked_for():
    law = published()
    with pytest.raises(InputError, match=r"loop .N_loop. is needed"):
        law(Points(1e9, 1e11, recurrence=2))
    with pytest.raises(InputError, match=r"total .N_total. is needed"):
        law(Points(1e9, 1e11, experts=2, loop=1e8))
    with pytest.raises(InputError, match="no resampled laws"):
        law.resampled(Points(1e9, 1e11))
    assert law(Points(1e9, 1e11)) == pytest.approx(law(Points(1e9, 1e11, loop=5e8, total=1e9)))
    assert law.counts is Counting.WITHOUT_EMBEDDINGS


def test_a_law_whose_coefficients_explode_says_so_instead_of_a_number():
    wild = replace(published(), coefficients={**published().coefficients, "alpha": 1e6}, name="wild")
    with pytest.raises(InputError, match="wild: its coefficients give no finite loss"):
        wild(Points(1e10, 1e11))
    steep = replace(published(), coefficients={**published().coefficients, "theta": 1e6}, name="steep")
    with pytest.raises(InputError, match="steep: its coefficients give no finite gain"):
        steep.gain(Points(1e9, 1e11, recurrence=2, experts=8, loop=5e8, total=5e9))


def test_a_law_may_have_been_fitted_on_any_finite_range(tmp_path):
    data = published().to_dict() | {"range": {"size": [1, 10**30]}}
    (tmp_path / "law.json").write_text(json.dumps(data))
    assert ScalingLaw.load(tmp_path / "law.json").fitted_range.size == (1.0, 1e30)


JUNK = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([]) | st.just({})
    | st.sampled_from([10**400, -(10**400), 10**30, [[[]]], {"A": 10**400}, [1, 10**400], "\ud800"])
)  # fmt: skip


def paths(value, path=()):
    """Return the path to every value inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [deeper for key, item in inner for deeper in [(*path, key), *paths(item, (*path, key))]]


@settings(max_examples=500, deadline=None)
@given(name=st.sampled_from(list(PUBLISHED)), data=st.data())
def test_junk_in_a_law_file_is_refused_in_a_sentence_or_makes_a_law(name, data):
    stored = published(name).to_dict()
    path = data.draw(st.sampled_from([p for p in paths(stored) if p[0] != "resamples"]))
    inner = stored
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = data.draw(JUNK)
    law = law_or_sentence(stored)
    if isinstance(law, str):
        assert law.startswith("law.json: ")
        assert "\n" not in law
    else:
        assert ScalingLaw.from_dict(law.to_dict()) == law


def law_or_sentence(stored):
    try:
        return ScalingLaw.from_dict(stored, "law.json")
    except InputError as refused:
        return str(refused)


def test_laws_of_repeated_data_know_how_often_they_saw_them(tmp_path):
    law = published("data-constrained-2023")
    points = Points(1e9, np.array([1e10, 1e11]), unique_tokens=np.array([1e10, 1e7]))
    assert law.extrapolated(points)["epochs"].tolist() == [False, True]
    law.save(tmp_path / "law.json")
    assert ScalingLaw.load(tmp_path / "law.json").fitted_range.epochs == (1, 1500)
    assert "epochs" not in published().to_dict()["range"]
