"""The first ten minutes of three new users: their files as they came, and the commands that they tried."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from test_commands import refused, run
from test_screens import check_screen

import loopscale as ls
from loopscale.cli import main
from loopscale.cli.verbs import cli
from loopscale.scaling import ScalingLaw
from pages import ROOT

SIZES = (0.08, 0.18, 0.4, 0.9)


def noisy(loss: float, random: np.random.Generator) -> str:
    return f"{loss * np.exp(0.003 * random.standard_normal()):.4f}"


def dense() -> list[str]:
    """A runs table of W&B: crashed and running runs, missing losses, a repeated row, a diverged run."""
    random, lines = np.random.default_rng(0), ["Name,State,Active Params (B),train/tokens,train/loss,eval/loss"]
    for N in SIZES:
        for ratio in (10, 20, 40, 80):
            loss = noisy(1.7 + 0.42 * N**-0.34 + 0.97 * (ratio * N) ** -0.37, random)
            lines.append(f"d{N:g}-{ratio},finished,{N},{ratio * N * 1e9:.0f},{loss},{loss}")
    return [*lines, lines[3], "oom,crashed,0.4,1e9,4.1,4.3", "old,failed,0.9,,,", "new,running,0.18,1e9,3.0,",
            "boom,finished,0.4,8e9,7.1,6.9"]  # fmt: skip


def clean() -> list[str]:
    """Runs with nothing wrong with them."""
    rows = [line.split(",") for line in dense()[1:17]]
    return ["run,params,tokens,loss", *(f"{r[0]},{float(r[2]) * 1e9:.0f},{r[3]},{r[5]}" for r in rows)]


def moe() -> list[str]:
    """Routed experts with k of them active, and one diverged run."""
    random, lines = (
        np.random.default_rng(1),
        ["run,Active Params (B),num_experts,top_k,total_params_B,tokens,eval_loss"],
    )
    for N in SIZES:
        for experts, k in ((1, 1), (8, 2), (32, 2)):
            for ratio in (20, 60, 150):
                E = experts / k
                loss = noisy(1.6 + 0.34 * E**-0.15 * N**-0.3 + 1.3 * (ratio * N) ** -0.3, random)
                total = N * (0.3 + 0.7 * E)
                lines.append(f"m{N}-{experts}-{ratio},{N},{experts},{k},{total:.3f},{ratio * N * 1e9:.0f},{loss}")
    return [*lines, "moe_boom,0.4,8,2,1.24,24000000000,9.87"]


def looped() -> list[str]:
    """Sizes with their units, a repeated row, a missing loss and a diverged run."""
    random, lines = np.random.default_rng(2), ["run,params,loop_params,loops,tokens,val_loss"]
    for N in SIZES:
        for R in (1, 2, 4, 8):
            for ratio in (20, 50, 100):
                gain = 0.5 * (R**0.45 - 1)
                loss = noisy(1.7 + 0.333 * (N * (1 + gain)) ** -0.352 + 1.26 * (N * ratio) ** -0.277, random)
                lines.append(f"l{N}-{R}-{ratio},{N * 1e3:.0f}M,{N * 500:.0f}M,{R},{N * ratio:.2f}B,{loss}")
    return [*lines, lines[5], "none,180M,90M,2,9B,", "div,180M,90M,2,9B,6.9"]


def semicolons() -> list[str]:
    """A spreadsheet of another country: semicolons and decimal commas."""
    rows = [line.split(",") for line in dense()[1:17]]
    cells = [(name, f"{float(N) * 1e9:.0f}", tokens, loss) for name, _, N, tokens, _, loss in rows]
    return ["# exported on Monday", "run;params;tokens;loss", *(";".join(row).replace(".", ",") for row in cells)]


def trillions() -> list[str]:
    """Sizes in billions and tokens in trillions, in columns that say so."""
    rows = [line.split(",") for line in dense()[1:17]]
    return ["model,size_b,tokens_t,loss", *(f"{r[0]},{r[2]},{float(r[3]) / 1e12},{r[5]}" for r in rows)]


FILES = {"wandb": dense, "moe": moe, "looped": looped, "semicolons": semicolons, "trillions": trillions}
DIVERGED = {"wandb": "boom", "moe": "moe_boom", "looped": "div"}


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Path:
    """The folder of a new user."""
    folder = tmp_path_factory.mktemp("desk")
    for name, table in FILES.items():
        (folder / f"{name}.csv").write_text("\n".join(table()) + "\n")
    return folder


@pytest.fixture
def terminal(desk, monkeypatch) -> None:
    monkeypatch.chdir(desk)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("name", FILES)
def test_the_readmes_first_fit_works_at_the_first_try_and_fits_a_screen(name, terminal, capsys):
    text = run(capsys, "fit", f"{name}.csv", "--resamples", "20", "--out", f"{name}.json", "--report", f"{name}.html")
    check_screen(text)
    assert re.search(rf"Saved {name}\.json, {name}\.html\.\s+Next: loopscale plan", text)
    assert Path(f"{name}.html").read_text().count("<svg") > 2
    law = ScalingLaw.load(f"{name}.json")
    assert not law.degenerate
    assert law.rmse < 0.03
    if name in DIVERGED:
        assert f"run '{DIVERGED[name]}' (line " in text
        assert '--keep "loss < ' in text


def test_headers_that_name_the_settings_of_wandb_are_recognised(terminal, capsys):
    header, *rows = dense()
    header = header.replace("Active Params (B)", "config.model_size_b").replace("train/tokens", "summary.train/tokens")
    Path("settings.csv").write_text("\n".join([header, *rows]) + "\n")
    text = run(capsys, "fit", "settings.csv", "--resample", "none")
    assert "N_act = config.model_size_b" in text
    assert "D = summary.train/tokens" in text


def test_a_diverged_run_does_not_change_what_the_next_runs_are_worth(terminal, capsys):
    target = ("--budget", "1e20", "--params", "7B", "--tokens", "140B", "--json")
    expected = {}
    for name, keep in (("all", ()), ("kept", ("--keep", "loss < 5"))):
        chosen = json.loads(
            run(capsys, "next", "looped.csv", *keep, "--mapping", "power", "--outer", "chinchilla", *target)
        )
        expected[name] = chosen["before"]
    assert expected["all"] == pytest.approx(expected["kept"], rel=0.2)


def test_a_folder_without_runs_is_called_one(terminal, capsys):
    Path("notes").mkdir()
    assert "notes: this folder holds no runs; give a table of runs" in refused(capsys, "fit", "notes")


def test_a_plan_prints_in_python_as_on_the_command_line(terminal, capsys):
    budget = {"flops": "5e21", "memory": "3GB", "bits": "int4"}
    printed = run(capsys, "plan", *(word for name, value in budget.items() for word in (f"--{name}", value)))
    planned = ls.plan(**budget)
    assert str(planned).splitlines()[:-1] == printed.splitlines()[:-1]
    assert repr(planned).startswith("<Plan 1.0B 2/16 R=2: loss 1.9757")


def test_sizes_in_billions_by_mistake_are_called_far_below_the_data(terminal):
    fitted = ls.fit("semicolons.csv", resamples=5)
    assert "more than 10x beyond the data: size 7 is 11,428,571x below" in repr(fitted.predict(N=7, D=140))
    assert not fitted.predict(N=1e9, D=20e9).note


def test_runs_in_the_place_of_a_law_name_the_fit(terminal, capsys):
    said = refused(capsys, "predict", "--params", "7B", "--tokens", "140B", "--law", "semicolons.csv")
    assert "this is a table of runs" in said
    assert "fit it first: loopscale fit semicolons.csv --out law.json" in said


def test_a_fit_with_forms_to_choose_from_and_warnings_fits_a_screen(terminal, capsys):
    check_screen(run(capsys, "fit", "micro", "--resamples", "5", "--out", "shipped.json"))
    forecast = run(capsys, "forecast", "shipped.json", "--params", "60e3", "--tokens", "10e6")
    assert "fitted to micro-sweep.csv; law joint MoE law" in " ".join(forecast.split())
    check_screen(forecast)


def test_a_group_of_commands_without_one_prints_its_help(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["sweep"])
    assert stopped.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Usage: loopscale sweep [OPTIONS] COMMAND [ARGS]..."
    assert any(line.strip().startswith("status ") for line in lines)


@pytest.mark.parametrize("name", ["wandb", "looped"])
def test_a_fitted_law_stands_for_its_runs_in_every_later_command(name, terminal, capsys):
    run(capsys, "fit", f"{name}.csv", "--keep", "loss < 5", "--resamples", "20", "--out", f"{name}-kept.json")
    for command in (("backtest", "--resamples", "5"), ("fit", "--resample", "none")):
        text = run(capsys, command[0], f"{name}-kept.json", *command[1:])
        check_screen(text)
        assert "diverged" not in text
    run(capsys, "report", "sweep", f"{name}-kept.json", "--out", "sweep.html")
    assert "loss &lt; 5" in Path("sweep.html").read_text()


@pytest.mark.parametrize(
    "command",
    [
        ("count", "--rung", "1.0B", "--experts", "8", "--context", "8k"),
        ("count", "--rung", "0.3B"),
        ("predict", "--rung", "1.0B", "--experts", "8", "--recurrence", "2", "--tokens", "500B"),
        ("plan", "--gpus", "64", "--device", "h100", "--days", "3weeks", "--memory", "3GB", "--bits", "4.5",
         "--context", "8k"),
        ("plan", "--flops", "5e21", "--memory", "3GB", "--bits", "q4_k_m", "--min-speed", "20", "--for", "phone"),
        ("matched", "1.0B:8:4", "2.4B:8:1", "--flops", "1e21"),
        ("profile", "joint", "--flops", "5e21", "--memory", "1GB,3GB,10GB", "--bits", "int4"),
        ("profile", "recurrence", "--rung", "1.0B", "--experts", "8"),
        ("profile", "best-experts"),
        ("laws",),
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_they_tried_fits_a_screen(command, terminal, capsys):
    check_screen(run(capsys, *command))


def test_a_context_of_8k_is_8192_in_every_command(capsys):
    assert "at 8,192 positions" in run(capsys, "count", "--rung", "0.3B", "--context", "8k")


def test_days_take_weeks_and_hours(capsys):
    argv = ("plan", "--gpus", "64", "--device", "h100", "--memory", "3GB", "--bits", "int4", "--json", "--days")
    assert run(capsys, *argv, "3weeks") == run(capsys, *argv, "21") == run(capsys, *argv, "504h")
    assert "'3weks' is not a time; write it like 21, 36h or 3weeks" in refused(capsys, *argv, "3weks")


def test_isoflop_says_in_a_line_what_runs_it_needs(terminal, capsys):
    said = refused(capsys, "isoflop", "semicolons.csv")
    assert "0 of 16 budgets here have one (most others: 1 size, 4 needed); give four sizes or more" in said


def test_profiles_name_experts_as_the_model_is_built(terminal, capsys):
    text = run(capsys, "profile", "joint", "--flops", "5e21", "--memory", "3GB", "--bits", "int4")
    assert re.search(r"3 GB +1\.0B +2/16 ", text)
    assert "E" not in re.findall(r"^memory.*", text, re.M)[0].split()


def test_an_answer_too_far_in_tokens_names_the_limit_that_gives_one(terminal, capsys):
    budget = ("plan", "--flops", "4.59e22", "--memory", "3GB", "--inference-flops", "2e9")
    said = refused(capsys, *budget)
    assert "no answer: the best design" in said
    assert "set --max-tokens to 5T for the best design within 10x" in said
    check_screen(run(capsys, *budget, "--max-tokens", "5T"))


def test_the_next_command_that_a_fit_names_has_an_answer(terminal, capsys):
    text = run(capsys, "fit", "semicolons.csv", "--resamples", "5", "--out", "next.json")
    command = text.partition("Next: loopscale ")[2].split()
    check_screen(run(capsys, *command))


def test_a_law_predicts_a_looped_model_of_ones_own(terminal, capsys):
    run(capsys, "fit", "looped.csv", "--resamples", "5", "--out", "own.json")
    model = ("predict", "--params", "4B", "--recurrence", "4", "--tokens", "400B", "--law", "own.json")
    assert "--loop-params is missing: this model is looped" in refused(capsys, *model)
    text = run(capsys, *model, "--loop-params", "2B")
    check_screen(text)
    assert "4.0B dense model · looped 4x · 400B tokens" in text
    assert "--loop-params is larger than --params" in refused(capsys, *model, "--loop-params", "5B")
    predicted = ls.predict(N=4e9, loop_params=2e9, recurrence=4, D=400e9, law="own.json")
    assert f"{predicted.loss:.2f}" in text.splitlines()[0]


def test_designs_far_beyond_the_data_have_no_loss_in_the_table(terminal, capsys):
    budget = ("plan", "--flops", "4.59e22", "--memory", "3GB", "--bits", "int4")
    assert re.search(r"^0\.6B 2/16 R=4 +5\.47T† +beyond 10x ", run(capsys, *budget), re.M)
    assert "beyond 10x" in run(capsys, *budget, "--verbose")
    assert re.search(r"^0\.6B 2/16 R=4 +5\.47T† +\d\.\d{4}† ", run(capsys, *budget, "--extrapolate"), re.M)


def test_the_nearest_designs_are_listed_by_loss(terminal, capsys):
    text = run(capsys, "plan", "--flops", "5e21", "--memory", "3GB", "--bits", "int4")
    table = text.partition("Nearest designs")[2].partition("extrapolated")[0]
    losses = re.findall(r"^\S+ \S+ R=\d+ +\S+ +(\d\.\d{4})", table, re.M)
    assert len(losses) == 5
    assert losses == sorted(losses)


def test_the_next_allowed_design_is_always_in_the_table(terminal, capsys):
    text = run(capsys, "plan", "--gpus", "8", "--device", "h100", "--days", "14", "--for", "phone")
    lead = re.search(r"(0\.\d{4}) ahead of the next allowed", text)[1]
    assert re.search(rf"^1\.6B 2/8 R=1† .* \+{lead} +2\.41 GB$", text, re.M)


def test_a_plan_answers_before_it_names_the_files_that_it_wrote(terminal):
    argv = ["plan", "--flops", "5e21", "--memory", "3GB", "--bits", "int4", "--train", "saved.toml", "--out", "p.json"]
    done = CliRunner().invoke(cli, argv)
    lines = done.output.splitlines()
    assert lines[0].startswith("Train 1.0B MoE")
    assert lines[-1] == "Saved saved.toml, p.json. Next: loopscale train saved.toml --estimate"
    assert len(lines) <= 22
    assert Path("saved.toml").exists()


def test_two_designs_are_compared_in_the_memory_of_a_phone(terminal, capsys):
    pair = ("matched", "1.0B:8:2", "2.4B:1:1", "--flops", "5e21")
    text = run(capsys, *pair, "--memory", "3GB", "--bits", "int4", "--context", "8k")
    check_screen(text)
    assert re.search(r"^3 GB memory +1\.0B 1\.9\d+ +2\.4B 2\.06", text, re.M)
    assert "memory" not in run(capsys, *pair).replace("KV memory", "")


def test_a_context_counts_in_the_memory_of_a_profile(capsys):
    profile = ("profile", "joint", "--flops", "5e21", "--memory", "3GB", "--bits", "int4", "--json")
    without, with_context = (json.loads(run(capsys, *profile, *more)) for more in ((), ("--context", "128k")))
    assert without["rows"][0]["loss"] < with_context["rows"][0]["loss"]


def test_options_under_other_names_are_answered_with_what_to_write(capsys):
    assert "no option --weeks; write --days 3weeks" in refused(capsys, "plan", "--weeks", "3")
    assert "write --min-speed 20" in refused(capsys, "plan", "--tokens-per-second", "20")


def test_the_interval_of_a_published_law_is_that_of_a_run_and_wider_than_its_error(capsys):
    planned = json.loads(run(capsys, "plan", "--flops", "5e21", "--memory", "3GB", "--bits", "int4", "--json"))
    interval = planned["interval"]
    assert interval["kind"] == "predictive"
    assert (interval["high"] - interval["low"]) / 2 > 1.645 * planned["law_eps"]


def test_exponents_are_printed_as_papers_print_them_with_the_law_as_an_equation(terminal, capsys):
    text = run(capsys, "fit", "semicolons.csv", "--resamples", "5")
    assert re.search(r"L = 1\.\d+ \+ 0\.\d+ / N\^0\.\d+ \+ 0\.\d+ / D\^0\.\d+ +\(N, D in billions\)", text)
    assert re.search(r"alpha 0\.\d+ \[0\.\d+, 0\.\d+\]", text)


def test_a_prediction_as_csv_has_plain_cells(capsys):
    row = run(capsys, "predict", "--rung", "1.0B", "--experts", "8", "--tokens", "500B", "--csv")
    assert "{" not in row
    assert len(row.splitlines()) == 2


def test_tables_have_one_style(terminal, capsys):
    commands = (
        ("plan", "--flops", "5e21", "--memory", "3GB"),
        ("matched", "1.0B:8:4", "2.4B:8:1", "--flops", "1e21"),
        ("count", "--rung", "0.3B"),
        ("profile", "joint", "--memory", "3GB"),
        ("compare", "semicolons.csv", "--folds", "2", "--resamples", "50"),
    )
    for command in commands:
        text = run(capsys, *command)
        assert re.search(r"^─+$", text, re.M), text
        assert not set("━┃│┏┡┌") & set(text), text


def test_a_server_that_others_reach_wants_a_secret_and_the_docs_give_one(capsys):
    pytest.importorskip("uvicorn")
    assert "give --token SECRET" in refused(capsys, "app", "--host", "0.0.0.0")
    assert "--host 0.0.0.0 --token " in (ROOT / "docs" / "app.md").read_text()


def test_the_faq_says_what_counts_as_a_run_as_the_fit_does(terminal, capsys):
    rows = [line.partition(",")[2] for line in clean()]
    Path("norun.csv").write_text("\n".join(rows) + "\n")
    assert "every row counts as a run" in run(capsys, "fit", "norun.csv", "--resamples", "5")
    assert "rows with equal N" not in (ROOT / "docs" / "faq.md").read_text()
