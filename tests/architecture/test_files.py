"""An architecture goes into a file and comes back the same; anything else is refused by name."""

import copy
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published_configs import CONFIGS

from loopscale.architecture import RUNG_EXPERTS, RUNGS, Architecture, at_width, continuous, from_config, rung
from loopscale.core.errors import InputError


@pytest.mark.parametrize("experts", RUNG_EXPERTS)
@pytest.mark.parametrize("name", RUNGS)
def test_every_rung_comes_back_from_its_file(name, experts, tmp_path):
    model = rung(name, experts=experts)
    model.save(tmp_path / "model.json")
    assert Architecture.load(tmp_path / "model.json") == model


@pytest.mark.parametrize("name", CONFIGS)
def test_every_family_comes_back_from_its_file(name, tmp_path):
    model = from_config(CONFIGS[name])
    model.save(tmp_path / "model.json")
    again = Architecture.load(str(tmp_path / "model.json"))
    assert again == model
    assert again.parameters == model.parameters


def test_a_model_without_a_loop_block_of_its_own_comes_back():
    model = at_width(768, layers=4)
    assert Architecture.from_dict(model.to_dict()) == model


def test_a_file_written_by_hand_may_leave_defaults_out():
    layer = {
        "attention": {"kind": "grouped", "heads": 4, "kv_heads": 2, "head_size": 8},
        "feed_forward": {"kind": "dense", "hidden": 64},
    }
    model = Architecture.from_dict({
        "kind": "architecture", "schema": 1, "width": 32, "vocabulary": 100, "tied": True,
        "loop_block": [{"layer": layer, "count": 3}], "recurrence": 2,
    })  # fmt: skip
    assert model.loop == model.total == 3 * (2 * 32 * 8 * 6 + 3 * 32 * 64 + 2 * 32)


def test_the_continuous_ladder_has_no_file(tmp_path):
    with pytest.raises(InputError, match="only a model of whole dimensions can be saved"):
        continuous(800, 3).save(tmp_path / "model.json")
    assert not list(tmp_path.iterdir())


def changed(*path, to):
    data = copy.deepcopy(rung("0.3B", experts=8).to_dict())
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return data


ATTENTION = ("prelude", 0, "layer", "attention")
EXPERTS = ("loop_block", 0, "layer", "feed_forward")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ([], "m.json: found [] where an object with named fields was expected"),
        (changed("kind", to="law"), "m.json: this is a 'law' file; a 'architecture' file is needed here"),
        (changed("schema", to=2), "m.json: schema 2 is newer than this loopscale reads (1); upgrade loopscale"),
        (changed("widht", to=3), "m.json: unknown field 'widht' (did you mean 'width'?)"),
        (changed("width", to=0), "m.json: field 'width' is 0; it should be a whole number from 1 to 1000000000000"),
        (changed("width", to=768.0), "m.json: field 'width' is 768.0; it should be a whole number"),
        (changed("width", to=10**50), "field 'width' is a number of more than 30 digits; it should be a whole number"),
        (changed("tied", to=1), "m.json: field 'tied' is 1; it should be true or false"),
        (changed("recurrence", to=0), "m.json: field 'recurrence' is 0; it should be a whole number from 1"),
        (changed("prelude", to={}), "m.json: field 'prelude' is {}; it should be a list"),
        (changed("prelude", 0, to=4), "m.json: prelude[0]: found 4 where an object with named fields was expected"),
        (changed("prelude", 0, "counts", to=4), "m.json: prelude[0]: unknown field 'counts' (did you mean 'count'?)"),
        (changed(*ATTENTION, "kind", to="group"), "attention: field 'kind' is 'group' (did you mean 'grouped'?)"),
        (changed(*ATTENTION, "head", to=1), "m.json: prelude[0]: layer: attention: unknown field 'head'"),
        (changed(*ATTENTION, "window", to=0), "attention: field 'window' is 0; it should be a whole number from 1"),
        (changed(*ATTENTION, "qk_norm", to="all"), "'qk_norm' is 'all'; it should be 'none' or 'head' or 'full'"),
        (changed(*EXPERTS, "active_experts", to=17), "'active_experts' is 17 and 'routed' 16; a token cannot use more"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_by_file_and_field(data, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.json").write_text(json.dumps(data))
    with pytest.raises(InputError) as refused:
        Architecture.load("m.json")
    assert sentence in str(refused.value)


def test_a_file_without_layers_is_refused():
    data = rung("0.3B").to_dict() | {"prelude": [], "loop_block": [], "coda": []}
    with pytest.raises(InputError, match="it has no layers"):
        Architecture.from_dict(data, "m.json")


JUNK = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([]) | st.just({})


def places(value, path=()):
    """Return the path to every value inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [each for key, item in inner for each in [(*path, key), *places(item, (*path, key))]]


@settings(max_examples=300)
@given(path=st.sampled_from(places(rung("0.3B", experts=8).to_dict())), junk=JUNK)
def test_junk_in_a_file_is_refused_or_makes_a_model_that_can_be_costed(path, junk):
    model = model_or_sentence(changed(*path, to=junk))
    if isinstance(model, str):
        assert model.startswith("m.json: ")
        return
    assert math.isfinite(model.kv_bytes(context=8) + model.weight_bytes(4) + model.m)
    assert Architecture.from_dict(model.to_dict()) == model


def model_or_sentence(data):
    try:
        return Architecture.from_dict(data, "m.json")
    except InputError as refused:
        return str(refused)
