"""The commands as other tools call them: JSON contracts, CSV, and what a person reads."""

import csv
import io
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import click
import numpy as np
import pytest

from loopscale.cli import main
from loopscale.cli.verbs import VERBS, cli
from loopscale.planning.budget import FIELDS, Group
from loopscale.scaling import PUBLISHED, find_law, published


def run(capsys, *argv: str) -> str:
    """Run a command that should succeed and return what it prints."""
    with pytest.raises(SystemExit) as stop:
        main(argv)
    out, err = capsys.readouterr()
    assert (stop.value.code, err) == (0, "")
    return out


def refused(capsys, *argv: str) -> str:
    """Run a command that should be refused and return its one sentence."""
    with pytest.raises(SystemExit) as stop:
        main(argv)
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err.strip()


def test_plan_prints_the_contract(capsys):
    found = json.loads(run(capsys, "plan", "--flops", "5e21", "--memory", "3GB", "--bits", "4", "--json"))
    choice = found["choice"]
    assert {key: choice[key] for key in ("rung", "experts", "recurrence")} == {
        "rung": "1.0B",
        "experts": 8,
        "recurrence": 2,
    }
    assert choice["active"] == 755056640
    assert choice["loss"] == pytest.approx(1.9757, abs=5e-5)
    assert choice["weight_bytes"] == 2708848640
    assert choice["train_flops"] == pytest.approx(5e21)
    assert choice["tokens"] == pytest.approx(5.886e11, rel=1e-3)


def test_plan_gives_the_recurrence_when_the_other_axes_are_fixed(capsys):
    argv = ("plan", "--rung", "0.3B", "--experts", "8", "--like", "0.6B:8:1", "--like-tokens", "6T", "--json")
    found = json.loads(run(capsys, *argv))
    assert found["choice"]["recurrence"] == 5
    assert found["candidates_in_all"] == 10


def test_predict_prints_the_contract(capsys):
    argv = ("predict", "--rung", "1.0B", "--experts", "8", "--recurrence", "2", "--tokens", "500B", "--json")
    found = json.loads(run(capsys, *argv))
    assert set(found) >= {"loss", "effective", "unrolled", "active", "loop", "total", "m", "extrapolated"}
    assert found["extrapolated"] == []
    assert found["unrolled"] == found["active"] + found["loop"]
    assert found["m"] == pytest.approx(found["active"] / found["total"])
    outside = json.loads(run(capsys, "predict", "--rung", "2.4B", "--experts", "32", "--tokens", "1T", "--json"))
    assert outside["extrapolated"] == ["size", "tokens", "experts"]


def test_predict_takes_compute_instead_of_tokens(capsys):
    by_flops = json.loads(run(capsys, "predict", "--rung", "0.3B", "--recurrence", "4", "--flops", "1e21", "--json"))
    assert by_flops["train_flops"] == pytest.approx(1e21)


@pytest.mark.parametrize("kind", ["size", "recurrence", "experts", "best-recurrence", "best-experts", "joint"])
def test_every_profile_comes_as_table_json_and_csv(capsys, kind):
    assert "law looped-moe-2026" in run(capsys, "profile", kind)
    rows = json.loads(run(capsys, "profile", kind, "--json"))["rows"]
    lines = list(csv.DictReader(io.StringIO(run(capsys, "profile", kind, "--csv"))))
    assert len(rows) == len(lines) > 5
    assert list(lines[0]) == list(rows[0])


def test_the_star_of_a_profile_says_what_it_marks(capsys):
    shown = run(capsys, "profile", "recurrence", "--flops", "5e21", "--rung", "0.3B", "--experts", "8")
    losses = {int(R): (float(loss), star) for R, loss, star in re.findall(r"^ *(\d+) +(\d\.\d+)†?(\*?)", shown, re.M)}
    assert [R for R, (_, star) in losses.items() if star] == [4]
    assert losses[6][0] < losses[4][0]  # so it is not the lowest, and must not be called so
    assert "* best: the last pass that gains at least eps" in shown


def test_a_map_shows_no_answer_more_than_10x_beyond_the_data(capsys):
    last = {
        rows[0]: rows[-1] for rows in map(str.split, run(capsys, "profile", "best-recurrence").splitlines()) if rows
    }
    assert last["0.3B"] == "beyond"
    assert "beyond" not in run(capsys, "profile", "best-recurrence", "--extrapolate")


@pytest.mark.parametrize("option", [("--gpus", "4"), ("--utilisation", "0.5"), ("--price", "2")])
def test_options_of_devices_are_refused_without_a_device(capsys, option):
    said = refused(capsys, "predict", "--rung", "0.3B", "--tokens", "1e11", *option)
    assert f"{option[0]} goes with --device" in said


@pytest.mark.parametrize("name", ["[bold]mine", "[/b]mine"])
def test_brackets_in_a_name_are_printed_as_they_are(capsys, tmp_path, name):
    law = json.loads(run(capsys, "laws", "kaplan-2020", "--json")) | {"name": name}
    path = tmp_path / "[red]law.json"
    path.write_text(json.dumps(law))
    assert name in run(capsys, "laws", str(path))
    assert path.name in run(capsys, "verify", str(path))


def test_a_profile_over_recurrence_marks_the_papers_best(capsys):
    argv = ("profile", "recurrence", "--flops", "1.4233e22", "--rung", "0.3B", "--experts", "8", "--json")
    rows = json.loads(run(capsys, *argv))["rows"]
    assert [row["recurrence"] for row in rows if row["best"]] == [5]


def test_plans_are_written_as_people_write_budgets(capsys):
    argv = ("plan", "--gpu-hours", "50_000", "--device", "h100", "--utilisation", "0.4", "--memory", "8GiB")
    text = run(capsys, *argv, "--bits", "int4", "--context", "8192", "--kv-bits", "fp8", "--serve-tokens", "1T")
    assert text.startswith("Train ")
    assert "B KV" in text
    assert "Nearest designs" in text


def test_extrapolated_numbers_are_marked_where_they_are_shown(capsys):
    assert "†" in run(capsys, "plan", "--flops", "5e21")
    assert "†" not in run(capsys, "predict", "--rung", "0.6B", "--tokens", "200B")


def test_a_plan_shows_its_pareto_front_when_asked(capsys):
    text = run(capsys, "plan", "--flops", "5e21", "--memory", "3GB", "--bits", "4", "--pareto", "memory")
    front = text.split("No other design beats these in both loss and memory")[1]
    assert "164 MB" in front
    assert "27.5 GB" in front


def test_csv_of_a_plan_has_every_candidate(capsys):
    lines = list(csv.DictReader(io.StringIO(run(capsys, "plan", "--flops", "5e21", "--memory", "10GB", "--csv"))))
    assert len(lines) == 300
    assert lines[0]["verdict"] == "chosen"


def test_a_law_file_with_resamples_gives_agreement(capsys, tmp_path):
    law = published().to_dict()
    base = np.array(list(law["coefficients"].values()))
    law["resamples"] = (base * (1 + 0.01 * np.random.default_rng(1).standard_normal((30, len(base))))).tolist()
    path = tmp_path / "law.json"
    path.write_text(json.dumps(law))
    out = tmp_path / "plan.json"
    argv = ("plan", "--flops", "5e21", "--memory", "3GB", "--bits", "4", "--law", str(path), "--out", str(out))
    assert re.search(r"near-optimal in (all|\d+ of) 30 refits", " ".join(run(capsys, *argv).split()))
    assert 0 <= json.loads(out.read_text())["agreement"] <= 1
    predicted = json.loads(run(capsys, "predict", "--rung", "0.3B", "--tokens", "1e11", "--law", str(path), "--json"))
    assert predicted["loss_low"] < predicted["loss"] < predicted["loss_high"]


def test_laws_lists_every_published_set_and_shows_one(capsys):
    listed = run(capsys, "laws")
    for name in PUBLISHED:
        assert name in listed
    shown = run(capsys, "laws", "looped-moe-2026")
    assert "kappa1" in shown
    assert "Chen, Goyal" in shown
    assert json.loads(run(capsys, "laws", "iso-depth-2026", "--json"))["coefficients"]["phi"] == 0.459


def test_count_shows_the_papers_costs_and_the_real_ones(capsys):
    found = json.loads(run(capsys, "count", "--rung", "0.3B", "--experts", "8", "--recurrence", "5", "--json"))
    assert found["unrolled"] == 173045760 + 4 * 138436608
    assert found["real_train_flops_per_token"] > found["train_flops_per_token"]
    assert found["stored_bytes"] == found["parameters"] * 2
    assert "KV cache" in run(capsys, "count", "--width", "2048", "--experts", "4")


def test_count_reads_a_config(capsys, tmp_path):
    config = {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert json.loads(run(capsys, "count", str(tmp_path), "--json"))["parameters"] == 8_030_261_248
    law = ("--law", "chinchilla-epoch-2024", "--extrapolate")
    predicted = json.loads(
        run(capsys, "predict", "--config", str(tmp_path), "--tokens", "15T", *law, "--extrapolate", "--json")
    )
    assert predicted["extrapolated"] == ["tokens"]
    assert (
        json.loads(run(capsys, "plan", "--config", str(tmp_path), "--flops", "1e24", "--extrapolate", "--json"))[
            "choice"
        ]["recurrence"]
        == 1
    )


def test_the_demo_leaves_a_plan_a_table_and_a_figure(capsys, tmp_path):
    assert "R*" not in refused(capsys, "demo", "--out", "/proc/nowhere")
    run(capsys, "demo", "--out", str(tmp_path / "out"), "--plan-only")
    assert {each.name for each in (tmp_path / "out").iterdir()} == {"plan.json", "joint.csv", "plan.png"}
    assert (tmp_path / "out" / "plan.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.slow
def test_the_whole_demo_trains_fits_and_reports(tmp_path):
    command = [sys.executable, "-m", "loopscale", "demo", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
    assert len((tmp_path / "out" / "runs.csv").read_text().splitlines()) == 7
    shown = " ".join(done.stdout[done.stdout.index("What this showed") :].split())
    assert re.search(r"runs once solves \d+% .* run 12 times solves 9\d%", shown)
    assert "Next: `loopscale lab two-axes --shipped`" in shown


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself_with_an_example(capsys, verb):
    text = run(capsys, verb, "--help")
    assert f"loopscale {verb}" in text


def test_the_help_of_plan_lists_every_option_in_the_group_of_its_field(capsys):
    groups, heading = {}, ""
    for line in run(capsys, "plan", "--help").splitlines():
        if re.fullmatch(r"[A-Z][a-z ]+:", line):
            heading = line.rstrip(":")
        elif option := re.match(r"  (?:-h, )?(--[a-z-]+)", line):
            groups[option[1]] = heading
    assert list(dict.fromkeys(groups.values())) == [*(group.value for group in Group), "Models", "Choice", "Output"]
    assert {field.option: groups[field.option] for field in FIELDS.values()} == {
        field.option: field.group.value for field in FIELDS.values()
    }


@pytest.mark.parametrize("argv", [(), ("--help",), ("help",)])
def test_the_first_screen_names_every_verb_in_24_lines_of_80_columns(capsys, argv):
    lines = run(capsys, *argv).splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    assert set(VERBS) <= set(re.findall(r"\w+", "\n".join(lines[4:])))
    assert [line.split()[0] for line in lines if line[:1].isupper()][2:] == ["Plan", "Fit", "Train", "Look", "More:"]


def test_the_list_of_all_verbs_says_of_each_what_it_does(capsys):
    lines = run(capsys, "help", "--all").splitlines()
    assert [line[7:].split()[0] for line in lines] == list(VERBS)
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if "…" in line or len(line) < 30]


def test_help_shows_the_help_of_a_verb_or_the_nearest_one(capsys):
    assert run(capsys, "help", "count") == run(capsys, "count", "--help")
    assert "did you mean 'plan'" in refused(capsys, "help", "plam")


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_lives_in_the_file_of_its_name(verb):
    assert cli.get_command(click.Context(cli), verb).callback.__module__ == f"loopscale.cli.{verb}"


def test_an_unexpected_exception_is_one_line_that_says_how_to_report_it(capsys, tmp_path, monkeypatch):
    def broken(*argv: object, **options: object) -> None:
        raise ZeroDivisionError("no\nmemory")

    monkeypatch.setattr(cli.get_command(click.Context(cli), "count"), "callback", broken)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("LOOPSCALE_DEBUG")
    with pytest.raises(SystemExit) as stop:
        main(["count", "--rung", "0.3B"])
    out, err = capsys.readouterr()
    (saved,) = tmp_path.iterdir()
    assert (stop.value.code, out) == (1, "")
    assert err == (
        "loopscale: a bug in loopscale stopped this command (ZeroDivisionError: no memory); "
        f"please report it with the traceback in {saved}\n"
    )
    assert "in broken" in saved.read_text()
    monkeypatch.setenv("LOOPSCALE_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["count", "--rung", "0.3B"])


REFUSED = [
    (("plan",), "give the compute"),
    (("plan", "--flops", "0"), "above zero"),
    (("plan", "--flops", "-5"), "--flops"),
    (("plan", "--flops", "nan"), "not a positive number"),
    (("plan", "--flops", "1e21", "--rung", "0.4B"), "not on the ladder"),
    (("plan", "--flops", "1e21", "--memory", "1MB"), "smallest candidate, 0.1B dense R=1, needs 120 MB"),
    (("plan", "--flops", "1e21", "--bits", "400"), "between 1 and 64 bits"),
    (("plan", "--flops", "1e21", "--recurrence", "0"), "from 1 up"),
    (("plan", "--flops", "1e21", "--experts", "1.3"), "whole number of routed experts"),
    (("plan", "--flops", "1e21", "--experts", "0"), "not an expert count"),
    (("plan", "--flops", "1e21", "--experts", "nan"), "not an expert count"),
    (("plan", "--flops", "1e21", "--law", "nowhere.json"), "nowhere.json: no such file"),
    (("plan", "--flops", "1e21", "--law", "loped-moe-2026"), "did you mean 'looped-moe-2026'"),
    (("plan", "--flops", "1e21", "--gpu-hours", "3"), "both state the compute"),
    (("plan", "--like", "0.6B:8:1"), "give --like-tokens with --like"),
    (("plan", "--like", "0.6B:8:1:9", "--like-tokens", "1T"), "RUNG:EXPERTS:RECURRENCE"),
    (("plan", "--flops", "1e21", "--rung", "0.3B", "--width", "512"), "both state the sizes"),
    (("plan", "--flops", "1e21", "--context", "4096"), "give --memory"),
    (("plan", "--flops", "1e21", "--eps", "nan"), "eps is nan"),
    (("plan", "--flops", "1e21", "--out", "/nowhere/plan.json"), "cannot be written"),
    (("plan", "--flps", "1e21"), "--flops"),
    (("plan", "--flops", "1e21", "--experts", "1..5000", "--recurrence", "1..9999"), "too large"),
    (("predict", "--tokens", "1B"), "give one of --rung, --width or --config"),
    (("predict", "--rung", "0.3B"), "give --tokens, --flops or --real-flops"),
    (("predict", "--rung", "0.3B", "--tokens", "1B", "--recurrence", "0"), "--recurrence"),
    (("profile", "colour"), "colour"),
    (("profile", "joint", "--flops", "1e21,1e22"), "one budget"),
    (("count", "--width", "100"), "multiple of 256"),
    (("count", "nowhere"), "nowhere"),
    (("plann",), "did you mean 'plan'"),
]


@pytest.mark.parametrize(("argv", "sentence"), REFUSED)
def test_bad_input_gets_one_clear_sentence(capsys, argv, sentence):
    assert sentence in refused(capsys, *argv)


def _commands(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from _commands(command.get_command(click.Context(command), name))


def test_the_examples_in_the_help_are_accepted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    find_law().save("law.json")
    lines = {line.strip() for command in _commands(cli) for line in (command.help or "").splitlines()}
    examples = [line.partition(" > ")[0] for line in lines if line.startswith("loopscale ")]
    assert len(examples) > 50
    for example in examples:
        command, words = cli, shlex.split(example, comments=True)[1:]
        while isinstance(command, click.Group):
            command = command.get_command(click.Context(command), words.pop(0))
        try:
            command.make_context(command.name, words)
        except click.ClickException as error:
            raise AssertionError(f"{example}: {error.format_message()}") from None


def test_importing_the_package_imports_nothing_heavy():
    heavy = ("numpy", "scipy", "torch", "pydantic", "rich", "click", "narwhals", "matplotlib", "transformers")
    code = f"import sys, loopscale; loaded = set({heavy!r}) & set(sys.modules); assert not loaded, loaded"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_core_never_imports_torch_nor_waits_for_scipy():
    code = (
        "import sys, loopscale.scaling, loopscale.architecture, loopscale.planning, loopscale.figures;"
        "import loopscale.cli.plan;"
        "assert 'torch' not in sys.modules, 'torch'; assert 'scipy' not in sys.modules, 'scipy';"
        "assert 'matplotlib' not in sys.modules, 'matplotlib';"
        "import loopscale.fitting; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("verb", "heavy"), [("train", "numpy"), ("sweep", "numpy"), ("lab", "torch")])
def test_the_help_of_training_loads_nothing_heavy(verb, heavy):
    code = (
        "import sys; from loopscale.cli.verbs import cli; "
        f"cli.main([{verb!r}, '--help'], standalone_mode=False); assert {heavy!r} not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_more_power_takes_more_pairs_of_seeds(capsys):
    argv = ("seeds", "--difference", "0.01", "--spread", "0.0144", "--json")
    usual, more = (json.loads(run(capsys, *argv, *power))["pairs"] for power in ((), ("--power", "0.9")))
    assert usual == 19 < more


def test_a_closed_pipe_is_no_error():
    argv = f"{sys.executable} -m loopscale plan --flops 5e21 --csv | head -n 1"
    done = subprocess.run(["bash", "-c", argv], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.startswith("rung,")
