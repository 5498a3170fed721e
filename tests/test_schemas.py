"""Files are read strictly: every mistake is one sentence that names the file and the field."""

import json
import re
import subprocess
import sys
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

import loopscale
from loopscale.cli import main
from loopscale.core.errors import InputError
from loopscale.core.quantities import fraction_of
from loopscale.core.schemas import Between, Bits, Bytes, Count, File, Quantity, Record, Whole, parse
from loopscale.saved import MODELS, OBJECTS, json_schema, model_of


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Inner(Record):
    width: Annotated[int, Between(2, 100)] = 4
    rate: float = Field(default=0.5, gt=0, le=1)


class Sample(File):
    KIND, VERSION = "sample", 2

    tokens: Count
    memory: Bytes | None = None
    bits: Bits = 16
    share: Annotated[float, Quantity(fraction_of, 0, 1)] = 1.0
    steps: Whole = 1
    colour: Colour = Colour.RED
    parts: tuple[Inner, ...] = ()
    flag: bool = False
    text: str = ""


HEAD = {"kind": "sample", "schema": 1, "tokens": 5}


def test_quantities_are_read_as_people_write_them():
    sample = parse(
        Sample,
        HEAD | {"tokens": "6T", "memory": "3GB", "bits": "int4", "share": "40%", "steps": "32k", "colour": "green"},
        "s",
    )
    assert (sample.tokens, sample.memory, sample.bits, sample.share, sample.steps) == (6e12, 3e9, 4, 0.4, 32_000)
    assert sample.colour is Colour.GREEN
    assert parse(Sample, HEAD | {"parts": [{"width": 7}]}, "s").parts == (Inner(width=7),)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tokens": "6TT"}, "s: field 'tokens': '6TT' is not a positive number; write it like 5e21, 0.3B or 6T"),
        ({"tokens": -1}, "s: field 'tokens': "),
        ({"tokens": True}, "s: field 'tokens': True is not a number"),
        ({"tokens": None}, "s: field 'tokens': None is not a number"),
        ({"memory": "3XB"}, "s: field 'memory': '3XB' is not an amount of memory"),
        ({"share": 2}, "s: field 'share': '2.0' is not above 0 and at most 1"),
        ({"steps": 0}, "s: field 'steps' is 0; it should be a whole number from 1 to"),
        ({"steps": 1.5}, "s: field 'steps' is 1.5; it should be a whole number from 1 to"),
        ({"colour": "rde"}, "s: field 'colour' is 'rde' (did you mean 'red'?); it should be 'red' or 'green'"),
        ({"parts": {}}, "s: field 'parts' is {}; it should be a list"),
        ({"parts": [{"widht": 3}]}, "s: parts[0]: unknown field 'widht' (did you mean 'width'?)"),
        ({"parts": [{}, {"width": 1}]}, "s: parts[1]: field 'width' is 1; it should be a whole number from 2 to 100"),
        ({"parts": [{"rate": 0}]}, "s: parts[0]: field 'rate' is 0; it should be above 0"),
        ({"parts": [{"rate": 3}]}, "s: parts[0]: field 'rate' is 3; it should be at most 1"),
        ({"parts": [{"rate": "1"}]}, "s: parts[0]: field 'rate' is '1'; it should be a number"),
        ({"parts": [{"rate": float("nan")}]}, "s: parts[0]: field 'rate' is nan; it should be a finite number"),
        ({"parts": [4]}, "s: parts[0]: found 4 where an object with named fields was expected"),
        ({"flag": 1}, "s: field 'flag' is 1; it should be true or false"),
        ({"text": 1}, "s: field 'text' is 1; it should be text"),
        ({"text": "\ud800"}, "s: it is nested too deeply, or holds a number or text that JSON cannot hold"),
        ({"steps": 10**400}, "s: field 'steps' is a number of more than 30 digits; it should be a whole number"),
        ({"tokens": 10**5000}, "s: it is nested too deeply, or holds a number"),
        ({"token": 4}, "s: unknown field 'token' (did you mean 'tokens'?)"),
        ({"kind": "law"}, "s: this is a 'law' file; a 'sample' file is needed here"),
        ({"schema": 3}, "s: schema 3 is newer than this loopscale reads (2); upgrade loopscale"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_place_and_the_remedy(change, sentence):
    with pytest.raises(InputError) as refused:
        parse(Sample, HEAD | change, "s")
    assert str(refused.value).startswith(sentence)
    assert "\n" not in str(refused.value)


def test_a_missing_field_is_named():
    with pytest.raises(InputError, match="s: field 'tokens' is missing"):
        parse(Sample, {"kind": "sample", "schema": 1}, "s")


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_has_a_json_schema_that_lists_its_fields(name):
    schema = json.loads(json.dumps(json_schema(name), allow_nan=False))
    model = model_of(name)
    assert set(model.model_fields) <= set(schema["properties"])
    assert schema["additionalProperties"] is (model.model_config["extra"] == "allow")
    if issubclass(model, File):
        assert schema["properties"]["kind"]["const"] == model.KIND


def test_every_kind_of_file_has_a_schema():
    sources = {path: path.read_text(encoding="utf-8") for path in Path(loopscale.__file__).parent.rglob("*.py")}
    models = {name for text in sources.values() for name in re.findall(r"^class (\w+)\(File\):", text, flags=re.M)}
    assert models <= {home.partition(":")[2] for home in MODELS.values()}


@pytest.mark.parametrize("home", OBJECTS.values())
def test_every_kind_that_can_be_loaded_has_a_class_that_reads_it(home):
    module, _, name = home.partition(":")
    assert callable(getattr(import_module(module), name).from_dict)


def test_the_command_prints_a_schema_and_refuses_other_names(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["schema", "law"])
    assert stop.value.code == 0
    assert json.loads(capsys.readouterr().out)["properties"]["kind"] == {
        "const": "law", "description": "What the file holds.",
    }  # fmt: skip
    with pytest.raises(SystemExit) as stop:
        main(["schema", "lav"])
    assert stop.value.code == 2
    assert "did you mean 'law'" in capsys.readouterr().err


def test_planning_from_a_published_law_does_not_import_pydantic():
    code = (
        "import sys; import loopscale as ls; from loopscale.planning import Budget\n"
        "ls.plan(Budget(flops=5e21)); assert 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
