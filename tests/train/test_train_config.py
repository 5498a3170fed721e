"""A run's file is read strictly, and says the paper's recipe when it says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopscale.core.errors import InputError
from loopscale.saved import json_schema
from loopscale.train.config import TrainConfig


def test_defaults_are_the_papers_recipe() -> None:
    config = TrainConfig()
    assert config.optimizer.betas == (0.9, 0.95)
    assert (config.optimizer.eps, config.optimizer.weight_decay, config.optimizer.clip) == (1e-15, 0.1, 1.0)
    assert config.data.context == 2048
    model = config.model.config(1000, 2048)
    assert (model.bias_update_rate, model.router_z_loss_coef, model.capacity_factor) == (1e-3, 1e-4, 1.5)
    assert model.rope_parameters == {"rope_type": "default", "rope_theta": 500_000.0}


def test_a_file_is_read_with_quantities_and_any_option_of_the_model(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[model]\nwidth = 32\ninjection = "add"\n[run]\ntokens = "3M"\n[data]\nfiles = ["a.txt"]\n')
    config = TrainConfig.read(path)
    assert config.run.tokens == 3e6
    assert config.data.files == ("a.txt",)
    assert config.model.config(300, 64).injection == "add"


@given(
    width=st.sampled_from([16, 32, 64]),
    experts=st.integers(1, 8),
    tokens=st.floats(1, 1e12),
    seed=st.integers(0, 2**31),
    track=st.lists(st.sampled_from(["wandb", "trackio"])),
)
def test_what_is_written_is_read_back_the_same(
    width: int, experts: int, tokens: float, seed: int, track: list[str]
) -> None:
    given_ = {"model": {"width": width, "experts": experts}, "run": {"tokens": tokens, "seed": seed, "track": track}}
    config = TrainConfig.from_dict(given_)
    assert TrainConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[modle]\nwidth = 3", "unknown field 'modle' (did you mean 'model'?)"),
        ("[model]\nwidht = 3", "unknown field 'widht' (did you mean 'width'?)"),
        ("[optimizer]\nlearning_rat = 3", "unknown field 'learning_rat' (did you mean 'learning_rate'?)"),
        ("[run]\nbatch = 'four'", "field 'batch' is 'four'; it should be a whole number"),
        ("[run]\nbatch = 0", "field 'batch' is 0; it should be a whole number from 1"),
        ("[run]\ntokens = -1", "field 'tokens': '-1.0' is not a positive number"),
        ("[run]\nbatch = 6\naccumulate = 4", "which 4 parts ('accumulate') do not divide"),
        ("[optimizer]\nbetas = [0.9]", "field 'betas[1]' is missing"),
        ("[optimizer]\nlearning_rate = nan", "it should be a finite number"),
        ("[schedule]\nkind = 'cosin'", "did you mean 'cosine'?"),
        ("[model]\nexperts = 0", "field 'experts' is 0; it should be a whole number from 1"),
        ("[run]\nprecision = 'fp23'", "did you mean 'fp32'?"),
        ("[run]\ntrack = ['tensorbord']", "did you mean 'tensorboard'?"),
        ("schema = 9", "schema is 9; this loopscale reads up to 1"),
        ("[run\n", "not TOML"),
    ],
)
def test_bad_files_get_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        TrainConfig.read(path)
    assert str(error.value).startswith(str(path))
    assert said in str(error.value)


def test_a_rung_takes_the_vocabulary_of_the_tokens() -> None:
    model = TrainConfig.from_dict({"model": {"rung": "0.3B", "experts": 8, "recurrence": 2}}).model.config(264, 512)
    assert (model.vocab_size, model.hidden_size, model.recurrence, model.num_experts) == (264, 768, 2, 16)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"width": 30}, "no multiple of head_size 16"),
        ({"layers": 2}, "leaves no loop block"),
        ({"experts": 2, "active_experts": 1}, "num_experts_per_tok is 1"),
        ({"active_experts": 5, "experts": 2}, "does not divide the feed-forward width"),
        ({"rung": "0.4B"}, "is not on the ladder"),
    ],
)
def test_impossible_shapes_get_one_sentence(model: dict[str, object], said: str) -> None:
    config = TrainConfig.from_dict({"model": model})
    with pytest.raises(InputError, match="model") as error:
        config.model.config(300, 64)
    assert said in str(error.value)


def test_quantities_may_be_text() -> None:
    config = TrainConfig.from_dict({"data": {"context": "2k", "files": "one.txt"}, "run": {"batch": "4"}})
    assert (config.data.context, config.run.batch, config.data.files) == (2000, 4, ("one.txt",))
    assert config.changed(run={"tokens": "6k"}).run.tokens == 6000


def test_a_run_that_0_2_saved_loads_unless_it_has_what_is_no_more() -> None:
    saved = TrainConfig().to_dict()
    saved["model"] |= {"residual_init": "unrolled", "placement": "edges"}
    assert TrainConfig.from_dict(saved) == TrainConfig()
    saved["model"]["placement"] = "all"
    with pytest.raises(InputError, match=r"\[model\] placement is 'all', and this version knows only 'edges'; use the"):
        TrainConfig.from_dict(saved)


def test_the_schema_describes_every_field() -> None:
    schema = json_schema("train")
    assert schema["$defs"]["RunSection"]["properties"]["tokens"]["description"].startswith("D: tokens")
