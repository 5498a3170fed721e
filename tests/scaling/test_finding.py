"""A law is found by name, in a file or in a fit; what is saved can be loaded; tables go to data frames."""

import json
from dataclasses import replace
from types import SimpleNamespace

import polars as pl
import pytest

import loopscale as ls
from loopscale.architecture import Attention, QKNorm, rung
from loopscale.core.errors import InputError
from loopscale.scaling import PUBLISHED, RAW, Counting, Points, ScalingLaw, find_law, published


def test_a_law_is_found_however_it_is_given(tmp_path):
    law = published("chinchilla-2022")
    law.save(tmp_path / "mine.json")
    assert find_law() == published()
    assert find_law(law) is law
    assert find_law(SimpleNamespace(law=law)) is law
    assert find_law("chinchilla-2022") is law
    assert find_law(tmp_path / "mine.json") == find_law(str(tmp_path / "mine.json")) == law


@pytest.mark.parametrize("wrong", ["chinchila-2022", 3, object(), ["chinchilla-2022"]])
def test_anything_else_is_refused_with_the_names(wrong):
    with pytest.raises(InputError, match=r"neither a published law.*choose from looped-moe-2026"):
        find_law(wrong)


def test_load_returns_what_the_file_says_it_is(tmp_path):
    published().save(tmp_path / "law.json")
    rung("0.3B", experts=8).save(tmp_path / "model.json")
    assert ls.load(tmp_path / "law.json") == published()
    assert ls.load(str(tmp_path / "model.json")) == rung("0.3B", experts=8)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"kind": "lav"}, "a file of kind 'lav' cannot be loaded .did you mean 'law'"),
        ({}, "field 'kind' is missing"),
        ([], "where an object with named fields was expected"),
    ],
)
def test_a_file_of_no_known_kind_is_refused(content, sentence, tmp_path):
    (tmp_path / "x.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=sentence):
        ls.load(tmp_path / "x.json")


def test_the_published_laws_are_a_table_for_any_data_frame():
    table = ls.laws()
    assert list(table.columns["name"]) == list(PUBLISHED)
    assert table.to_pandas().set_index("name").loc["chinchilla-2022", "size_min"] == 7e7
    assert pl.DataFrame(table.columns, strict=False)["rmse"].to_list()[0] == 0.0037
    assert "<td>looped-moe-2026</td>" in table._repr_html_()
    assert repr(table).startswith("<Table of 12 rows: name, outer")


def test_names_stand_for_enums_and_other_words_are_refused():
    law = published("chinchilla-2022")
    same = ScalingLaw(law.outer, law.mapping, law.coefficients, law.units, "with-embeddings")
    assert same.counts is Counting.WITH_EMBEDDINGS
    with pytest.raises(InputError, match=r"counts 'with-embedings' is not known .did you mean 'with-embeddings'"):
        ScalingLaw(law.outer, law.mapping, law.coefficients, law.units, "with-embedings")
    model = rung("0.3B")
    assert model.points(1e9, counts="with-embeddings").active == model.active + model.embedding
    assert Attention(4, 2, 8, qk_norm="head") == Attention(4, 2, 8, qk_norm=QKNorm.HEAD)
    with pytest.raises(InputError, match="qk_norm 'heads' is not known"):
        Attention(4, 2, 8, qk_norm="heads")


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_law_shows_itself_briefly_and_in_raw_counts(name):
    law = published(name)
    assert len(repr(law)) < 120
    assert name in law._repr_html_()
    raw = law.table()
    assert list(raw.columns["coefficient"]) == list(law.names)
    points = Points(1e9, 1e11)
    assert law.in_units(RAW)(points) == pytest.approx(float(law(points)), rel=1e-9)


def test_the_equation_is_the_one_that_papers_print():
    assert published("chinchilla-2022").equation() == "L = 1.69 + 406.4 / N^0.34 + 410.7 / D^0.28"


def test_a_model_shows_itself_briefly():
    assert repr(rung("1.0B", experts=8)) == (
        "<Architecture '1.0B': width 1280, 32 layers, E = 8, 0.755B active, 5.159B total>"
    )
    assert "<td>active</td>" in rung("1.0B")._repr_html_()


def test_the_list_of_laws_shows_whole_names_in_80_columns(monkeypatch, capsys):
    from loopscale.cli import main

    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["laws"])
    printed = capsys.readouterr().out
    assert all(name in printed for name in PUBLISHED)
    assert max(map(len, printed.splitlines())) <= 80


def test_a_count_or_a_rule_given_by_name_is_the_one_that_is_applied():
    """Strings used to be taken silently for the defaults."""
    model = rung("0.3B")
    text = "N,D,loss\n" + "\n".join(f"{n:g},{d:g},{3 - 0.1 * k}" for k, (n, d) in enumerate([(1e8, 1e9), (2e8, 4e9)]))
    data = ls.Observations.from_csv(text, counts="with-embeddings")
    assert data.counts is Counting.WITH_EMBEDDINGS
    by_name, by_default = (ls.plan(flops=5e21, memory=1e9, bits=4, **rule) for rule in ({"rule": "loss"}, {}))
    assert (by_name.choice.recurrence, by_default.choice.recurrence) == (3, 2)
    with pytest.raises(InputError, match=r"rule 'los' is not known .did you mean 'loss'"):
        ls.plan(flops=5e21, rule="los")
    assert model.points(1e9, counts=Counting.WITH_EMBEDDINGS).active > model.points(1e9).active


def test_a_law_adds_embeddings_to_the_sizes_only_if_it_counts_them():
    model, law = rung("0.3B", experts=8), published("joint-moe-2025")
    sizes = {name: getattr(model, name) for name in ("active", "loop", "total", "embedding", "experts")}
    for counting, extra in ((Counting.WITH_EMBEDDINGS, model.embedding), (Counting.WITHOUT_EMBEDDINGS, 0)):
        points = replace(law, counts=counting).points(tokens=[1e9, 2e9], unique_tokens=1e9, **sizes)
        assert (points.active, points.total) == (model.active + extra, model.total + extra)
        assert (points.loop, points.shape, points.unique.tolist()) == (model.loop, (2,), [1e9, 1e9])
        assert model.points(1e9, counts=counting).total == points.total
