"""Folders of others are data: nothing in them runs without consent."""

import contextlib
import json
import shutil
from pathlib import Path

import pytest

from loopscale.architecture import at_width
from loopscale.cli import main
from loopscale.core.errors import InputError

pytest.importorskip("torch")
pytest.importorskip("lm_eval")

from loopscale.evaluate.suites import Benchmark, TaskTrust
from loopscale.evaluate.task_checks import check_tasks
from loopscale.evaluate.tasks import Tasks, folder_tasks
from loopscale.model import LoopedMoEConfig, LoopedMoEForCausalLM
from loopscale.model.loading import load, load_tokenizer
from loopscale.train.data.tokenizer import find_tokens

TASK = """task: foreign
dataset_path: json
dataset_kwargs: {data_files: items.jsonl}
test_split: train
doc_to_text: "{{text}}"
doc_to_target: "{{answer}}"
output_type: generate_until
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A tiny checkpoint with its tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    tokens = find_tokens("bytes", [])
    small = at_width(256, layers=5, experts=2, vocabulary=tokens.vocabulary)
    LoopedMoEForCausalLM(LoopedMoEConfig.from_architecture(small, recurrence=2)).save_pretrained(folder)
    tokens.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def checkpoint(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "model"))


def change(folder: Path, name: str, **fields: object) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def plant(folder: Path, module: str) -> Path:
    """Put a module into the folder that leaves a mark when it runs."""
    mark = folder / "it-ran"
    (folder / f"{module}.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    return mark


def test_a_tokenizers_own_code_never_runs(checkpoint, monkeypatch):
    mark = plant(checkpoint, "evil")
    change(checkpoint, "tokenizer_config.json", tokenizer_class="Evil", auto_map={"AutoTokenizer": [None, "evil.Evil"]})
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    for read in (lambda: load_tokenizer(checkpoint, None), lambda: find_tokens(str(checkpoint), [])):
        with contextlib.suppress(InputError):
            read()
        assert not mark.exists()


def test_a_models_own_code_never_runs(checkpoint):
    mark = plant(checkpoint, "evil")
    change(checkpoint, "config.json", auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"})
    load(checkpoint)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["kernels-community/flash-attn", "flash_attention_2", "paged|sdpa", 3])
@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_attention_is_chosen_from_a_list(checkpoint, key, name):
    change(checkpoint, "config.json", **{key: name})
    with pytest.raises(InputError, match="should be one of eager, sdpa"):
        load(checkpoint)


@pytest.fixture
def task(tmp_path) -> Path:
    (tmp_path / "items.jsonl").write_text('{"text": "a", "answer": "b"}\n')
    (tmp_path / "foreign.yaml").write_text(TASK)
    return tmp_path


def test_a_task_without_code_is_taken(task):
    assert folder_tasks(task) == ["foreign"]


@pytest.mark.parametrize(
    "line",
    [
        "process_docs: !function evil.process",
        "process_results: !function evil.process",
        "metadata: {version: !!python/object/apply:os.getcwd []}",
        "filter_list: [{name: x, filter: [{function: custom, filter_fn: !function evil.process}]}]",
    ],
)
def test_a_task_with_code_needs_consent(task, line):
    mark = plant(task, "evil")
    (task / "foreign.yaml").write_text(f"{TASK}{line}\n")
    for ask in (lambda: folder_tasks(task), lambda: Tasks((Benchmark("x", "foreign", folder=task),))):
        with pytest.raises(InputError, match="--trust-task-code"):
            ask()
    assert not mark.exists()
    check_tasks(task, TaskTrust(code=True))


@pytest.mark.parametrize(
    "place",
    [
        "dataset_kwargs: {data_files: https://evil.example/items.jsonl}",
        "dataset_kwargs: {data_files: {train: ['zip://items.jsonl::http://169.254.169.254/items.zip']}}",
        "dataset_path: s3://bucket/items",
    ],
)
def test_data_at_an_address_need_consent(task, place):
    name = place.partition(":")[0]
    others = "".join(line for line in TASK.splitlines(keepends=True) if not line.startswith(name))
    (task / "foreign.yaml").write_text(f"{others}{place}\n")
    for trust in (TaskTrust(), TaskTrust(code=True)):
        with pytest.raises(InputError, match="--allow-remote"):
            folder_tasks(task, trust)
    check_tasks(task, TaskTrust(remote=True))


def test_files_of_a_training_text_are_never_addresses(tmp_path, monkeypatch):
    from loopscale.train.data.documents import list_files

    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"evil\.example"):
        list_files(("https://evil.example/text.txt",))


def test_code_in_an_included_file_is_found_too(task, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "base.txt"
    elsewhere.write_text("process_docs: !function evil.process\n")
    (task / "foreign.yaml").write_text(f"{TASK}include: {elsewhere}\n")
    with pytest.raises(InputError, match="--trust-task-code"):
        folder_tasks(task)


def test_a_metric_from_elsewhere_needs_consent(task):
    (task / "foreign.yaml").write_text(TASK.replace("exact_match", "./evil"))
    with pytest.raises(InputError, match="--trust-task-code"):
        folder_tasks(task)


def test_prompts_are_rendered_in_a_sandbox(task):
    from jinja2.exceptions import SecurityError
    from lm_eval.utils import apply_template

    folder_tasks(task)
    assert apply_template("{{text}}", {"text": "a"}) == "a"
    with pytest.raises(SecurityError):
        apply_template("{{ text.__class__.__mro__ }}", {"text": "a"})


@pytest.mark.parametrize(("field", "value"), [("recurrence", 10**9), ("loop_layers", 10**7), ("prelude_layers", 10**7)])
@pytest.mark.parametrize("command", [["generate", "--prompt", "x"], ["eval", "--tasks", "local"]])
def test_a_depth_that_would_fill_the_memory_is_refused(checkpoint, capsys, field, value, command):
    change(checkpoint, "config.json", **{field: value})
    with pytest.raises(SystemExit) as stop:
        main([command[0], str(checkpoint), *command[1:]])
    assert stop.value.code == 2
    assert "it should be" in capsys.readouterr().err


def test_a_width_without_weights_is_refused_before_it_is_built(checkpoint):
    change(checkpoint, "config.json", hidden_size=65536, num_attention_heads=1024, vocab_size=10**6)
    with pytest.raises(InputError, match="do not belong together"):
        load(checkpoint)


@pytest.mark.parametrize("damage", ["truncated", "empty", "pickle", "quantised"])
def test_damaged_or_foreign_weights_are_one_sentence(checkpoint, damage):
    weights = checkpoint / "model.safetensors"
    if damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif damage == "empty":
        weights.write_bytes(b"")
    elif damage == "pickle":
        weights.rename(checkpoint / "pytorch_model.bin")
    else:
        change(checkpoint, "config.json", quantization_config={"load_in_8bit": True, "quant_method": "bitsandbytes"})
    with pytest.raises(InputError) as error:
        load(checkpoint)
    assert str(checkpoint) in str(error.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("command", [["eval", "--text", "text.txt"], ["generate", "--prompt", "x"]])
def test_a_model_whose_weights_are_not_finite_gives_a_sentence_and_no_result(
    checkpoint, tmp_path, monkeypatch, capsys, value, command
):
    from safetensors.torch import load_file, save_file

    weights = load_file(checkpoint / "model.safetensors")
    next(iter(weights.values())).view(-1)[0] = value
    save_file(weights, checkpoint / "model.safetensors", metadata={"format": "pt"})
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("A small text of a few words.\n" * 20)
    with pytest.raises(SystemExit) as stop:
        main([command[0], str(checkpoint), *command[1:]])
    assert stop.value.code == 2
    assert "not finite" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.result.json"))


def test_a_score_that_is_not_finite_is_not_kept(tmp_path):
    from loopscale.evaluate.losses import LossSum
    from loopscale.evaluate.store import Key, Result, ResultStore

    scores = LossSum(tokens=1, windows=1, total=1e4).scores(tokens_per_byte=1.0)
    with pytest.raises(InputError, match="perplexity is inf"):
        ResultStore(tmp_path).add(Result(Key("c" * 64, "text:x", 2, {}), scores, samples=1, seconds=1.0))
    assert not list(tmp_path.iterdir())
