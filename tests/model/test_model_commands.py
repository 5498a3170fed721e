"""``loopscale routing`` and ``loopscale generate``, as a person runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from looped_models import WITHOUT_LOOPSCALE, model
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from loopscale.cli.checkpoint import model_folder
from loopscale.cli.export import export_command as export
from loopscale.cli.generate import generate_command as generate
from loopscale.cli.routing import routing_command as routing
from loopscale.model.loading import DEMO

TEXT = ["the cat sat on the mat", "a dog and a cat", "the end of it all", "on and on [it] goes"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("model")
    words = Tokenizer(models.WordLevel(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.train_from_iterator(TEXT, trainers.WordLevelTrainer(special_tokens=["<unk>", "<pad>"]))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", pad_token="<pad>").save_pretrained(where)
    model().save_pretrained(where)
    return where


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(TEXT) + "\n\n")
    return path


def run(command: object, *arguments: object) -> Result:
    return CliRunner().invoke(command, [str(each) for each in arguments])


def test_routing_prints_the_papers_table_shape(checkpoint: Path, prompts: Path) -> None:
    done = run(routing, checkpoint, "--data", prompts, "--recurrence", 4)
    assert done.exit_code == 0, done.output
    assert "Psi over 4 prompts" in done.output
    assert "1.0000 ± 0.0000" in done.output
    assert "R=4" in done.output


def test_routing_gives_json_and_csv_and_draws(checkpoint: Path, prompts: Path, tmp_path: Path) -> None:
    picture = tmp_path / "psi.png"
    done = run(routing, checkpoint, "--data", prompts, "--json", "--plot", picture, "--batch", 3)
    rows = json.loads(done.stdout)["rows"]
    assert [row["recurrence"] for row in rows] == [1, 2, 3]
    assert rows[0]["psi"] == 1 < rows[2]["psi"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    table = run(routing, checkpoint, "--data", prompts, "--csv").stdout.splitlines()
    assert table[0] == "experts,recurrence,psi,std_prompts,psi_tokens,std_tokens,std_layers"
    assert len(table) == 4


def test_routing_by_pass_prints_a_table_json_csv_and_draws(checkpoint: Path, prompts: Path, tmp_path: Path) -> None:
    picture = tmp_path / "passes.png"
    done = run(routing, checkpoint, "--data", prompts, "--by-pass", "--json", "--plot", picture)
    measured = json.loads(done.stdout)
    assert [row["recurrence"] for row in measured["rows"]] == [1, 2, 3, 4, 5, 6]  # twice the model's
    assert measured["rows"][0]["overlap_previous"] is None
    assert [len(row) for row in measured["overlap"]] == [6] * 6
    assert picture.read_bytes().startswith(b"\x89PNG")
    shown = run(routing, checkpoint, "--data", prompts, "--by-pass", "--recurrence", 2)
    assert "By pass, over 4 prompts" in shown.output
    table = run(routing, checkpoint, "--data", prompts, "--by-pass", "--recurrence", 2, "--csv").stdout.splitlines()
    assert table[0] == "recurrence,loss,distinct,overlap_previous,overlap_first,variance,change,distance"


def test_generate_shows_recurrences_side_by_side(checkpoint: Path) -> None:
    done = run(generate, checkpoint, "--prompt", "the cat [sat]", "--recurrence", "1..3", "--tokens", 5, "--exit", "kl")
    assert done.exit_code == 0, done.output
    rows = json.loads(run(generate, checkpoint, "--prompt", "the cat", "--recurrence", "1..5", "--json").stdout)["rows"]
    assert [row["mean_passes"] for row in rows] == [1, 2, 3, 4, 5]
    assert len({row["text"] for row in rows}) > 1


def test_generate_drafts_the_same_text(checkpoint: Path) -> None:
    asked = (checkpoint, "--prompt", "the cat", "--recurrence", "1..3", "--tokens", 12)
    plain, drafted = (
        json.loads(run(generate, *asked, *more, "--json").stdout)["rows"] for more in ((), ("--draft-recurrence", 1))
    )
    assert [row["text"] for row in drafted] == [row["text"] for row in plain]
    assert ["drafted" in row for row in drafted] == [False, True, True]
    assert "confirmed in" in run(generate, *asked, "--draft-recurrence", 1).stdout


def test_generate_samples_the_same_text_from_the_same_seed(checkpoint: Path) -> None:
    asked = (checkpoint, "--prompt", "the cat", "--temperature", 1.0, "--json")
    assert run(generate, *asked).stdout == run(generate, *asked).stdout != run(generate, *asked, "--seed", 1).stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["absent", "--prompt", "a"], "absent: no such folder"),
        (["{checkpoint}", "--prompt", " "], "--prompt is empty"),
        (["{checkpoint}", "--prompt", "a", "--tokens", "999"], "more than max_position_embeddings"),
        (["{checkpoint}", "--prompt", "a", "--tokenizer", "absent"], "absent: no tokenizer found there"),
    ],
)
def test_generate_says_what_is_wrong_in_a_sentence(checkpoint: Path, arguments: list[str], said: str) -> None:
    done = run(generate, *(each.format(checkpoint=checkpoint) for each in arguments))
    assert done.exit_code != 0
    assert said in f"{done.output} {done.exception}"


def test_routing_says_what_is_wrong_in_a_sentence(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "prompts.txt").write_text("a b\n")
    for arguments, said in (
        ((checkpoint, "--data", tmp_path / "absent"), "no such file"),
        ((checkpoint, "--data", tmp_path / "empty.txt"), "it holds no text"),
        ((tmp_path, "--data", tmp_path / "prompts.txt"), "its model_type is 'llama'; a 'looped_moe' model is needed"),
    ):
        done = run(routing, *arguments)
        assert said in str(done.exception)


def test_the_demo_model_comes_with_the_package() -> None:
    done = run(generate, "demo", "--prompt", "The state of", "--recurrence", "1..2", "--tokens", 8, "--json")
    assert done.exit_code == 0, done.output
    assert all(row["text"].strip() for row in json.loads(done.stdout)["rows"])
    assert (DEMO / "model.safetensors").stat().st_size < 3e6
    assert not list(DEMO.glob("*.py"))


def test_demo_is_the_shipped_model_beside_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert model_folder("demo") == DEMO
    assert capsys.readouterr().err == ""
    (tmp_path / "demo").mkdir()
    assert model_folder("demo") == DEMO
    assert "your own folder is ./demo" in capsys.readouterr().err
    assert model_folder("./demo").resolve() == tmp_path / "demo"


def test_the_demo_exported_with_its_code_loads_without_loopscale(tmp_path: Path) -> None:
    done = run(export, "demo", "--to", "transformers", "-R", 2, "--out", tmp_path / "demo")
    assert done.exit_code == 0, done.output
    assert "looped_moe, R = 2" in done.output
    script = WITHOUT_LOOPSCALE + (
        "from transformers import AutoTokenizer, PreTrainedTokenizerFast\n"
        f"folder = {str(tmp_path / 'demo')!r}\n"
        "plain = PreTrainedTokenizerFast.from_pretrained(folder)  # asks nothing: it does not read the model's config\n"
        "tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)\n"
        "model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)\n"
        "ids = tokenizer('The state of', return_tensors='pt').input_ids\n"
        "assert plain('The state of').input_ids == ids[0].tolist()\n"
        "print(model.config.recurrence, model.generate(ids, max_new_tokens=3).shape[1] - ids.shape[1])\n"
    )
    alone = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert alone.stdout.strip() == "2 3", alone.stderr[-2000:]


def test_no_call_asks_for_the_models_code_once_loopscale_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question"))
    assert run(export, "demo", "--to", "transformers", "--out", tmp_path / "demo").exit_code == 0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "demo")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "demo")
    assert type(model).__module__.startswith("loopscale.")
    assert len(tokenizer) <= model.config.vocab_size


def test_export_says_which_options_do_not_belong_together(tmp_path: Path) -> None:
    done = run(export, "demo", "--to", "onnx", "--quant", "f16", "--out", tmp_path / "x.onnx")
    assert done.exit_code == 2
    assert "--quant is for --to gguf, not onnx" in done.output
