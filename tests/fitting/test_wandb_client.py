"""A project of W&B, read by W&B's own client from a server on this machine."""

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from loopscale.cli.verbs import cli
from loopscale.core.errors import InputError
from loopscale.fitting import Observations
from wandb_server import run as run_of
from wandb_server import serving

pytest.importorskip("wandb", reason="the client of W&B is not installed: pip install wandb")

SIZES, RATIOS = (70e6, 160e6, 410e6, 760e6, 1.3e9), tuple(range(10, 120, 5))
"""110 runs: the client asks for 50 at a time."""


def settings(**values: object) -> str:
    """Return settings as the server stores them: each with its description, and W&B's own among them."""
    stored = {name: {"desc": None, "value": value} for name, value in values.items()}
    return json.dumps(stored | {"_wandb": {"value": {"cli_version": "0.31.0", "t": {"1": [1]}}}})


def rows() -> list[tuple[str, float, float, float]]:
    random = np.random.default_rng(0)
    return [
        (f"m{N / 1e6:.0f}-{ratio}", N, ratio * N,
         (1.7 + 480 / N**0.34 + 2100 / (ratio * N) ** 0.37) * np.exp(0.002 * random.standard_normal()))
        for N in SIZES for ratio in RATIOS
    ]  # fmt: skip


def sweep() -> list[dict[str, object]]:
    """Return a project as they are: nested settings, runs that ended badly, names that repeat."""
    runs = []
    for name, N, D, loss in rows():
        config = settings(
            batch={"size": 256}, model={"size": N, "layers": 12}, optimizer={"lr": 3e-4, "betas": [0.9, 0.95]},
            data="fineweb", compile=True, note=None,
        )  # fmt: skip
        last = {"_step": 99, "_runtime": 12.5, "_wandb": {"runtime": 12}, "train/tokens": D, "train/loss": loss - 0.1,
                "eval/loss": {"min": loss}, "grad": {"_type": "histogram", "bins": [1], "values": [2]}}  # fmt: skip
        runs.append((name, "finished", config, last))
    size = settings(model={"size": 160e6})
    runs += [
        ("m70-10", "crashed", size, {"train/tokens": 1e9, "train/loss": 4.1, "eval/loss": {"min": 3.9}}),
        ("nan", "finished", size, {"train/tokens": 3.2e9, "train/loss": "NaN", "eval/loss": {"min": "NaN"}}),
        ("inf", "finished", size, {"train/tokens": 3.2e9, "train/loss": "Infinity", "eval/loss": {"min": "Infinity"}}),
        ("new", "running", size, {"train/tokens": 1e9, "train/loss": 3.0}),
        ("boom", "finished", size, {"train/tokens": 3.2e9, "train/loss": 6.8, "eval/loss": {"min": 6.9}}),
    ]
    listed = [run_of(name, k, state, config, json.dumps(last)) for k, (name, state, config, last) in enumerate(runs)]
    return [*listed, run_of("oom", len(listed), "failed", size, None), run_of("old", 999, "killed", None, "{}")]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Point the client to this machine, and any other request of it to a port that nobody listens on."""
    wandb = pytest.importorskip("wandb")
    folder = tmp_path_factory.mktemp("wandb")
    projects = {"me/sweep": sweep(), "me/histories": histories(), "me/empty": []}
    with serving(projects) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
        patch.setenv("WANDB_API_KEY", "0" * 40)
        patch.setenv("WANDB_ERROR_REPORTING", "false")
        patch.setenv("OTEL_SDK_DISABLED", "true")
        patch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
        patch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        patch.setenv("NO_PROXY", "127.0.0.1")
        for name in ("WANDB_DIR", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR"):
            patch.setenv(name, str(folder))
        wandb.teardown()  # the client reads its environment once
        yield server
        wandb.teardown()


def histories() -> list[dict[str, object]]:
    """Return runs that logged the losses of training and validation at steps of their own."""
    runs = []
    for k, (name, N, D, loss) in enumerate(rows()[::6]):
        logged = [{"train/tokens": D / 2, "train/loss": 5.0}, {"eval/loss": loss + 0.4},
                  {"train/tokens": D, "train/loss": loss - 0.1}, {"eval/loss": loss}]  # fmt: skip
        history = [json.dumps({"_step": step, "_timestamp": 1e9 + step, **row}) for step, row in enumerate(logged)]
        runs.append(run_of(name, k, "finished", settings(n_params=N), json.dumps(logged[-1]), history))
    return runs


def test_a_project_fits_at_the_first_try(server):
    server.queries.clear()
    done = CliRunner().invoke(cli, ["fit", "wandb:me/sweep", "--resample", "none"])
    assert done.output.startswith("Fitted 111 runs from sweep (5 without loss skipped, 1 crashed skipped)")
    assert "columns   N_act = model.size, D = train/tokens, loss = eval/loss.min" in done.output
    assert "warning: run 'boom' (row 115) looks diverged" in done.output
    assert (done.exit_code, done.stderr) == (0, "")
    assert server.queries.count("Runs") == 3
    assert set(server.queries) <= {"Viewer", "GetDefaultEntity", "Runs"}


def test_every_run_of_a_project_is_read_as_it_was_logged(server):
    read = Observations.of("wandb:me/sweep", keep="run != 'boom'")
    np.testing.assert_allclose(read.points.active, [N for _, N, _, _ in rows()])
    np.testing.assert_allclose(read.points.tokens, [D for _, _, D, _ in rows()])
    np.testing.assert_allclose(read.loss, [loss for _, _, _, loss in rows()])
    assert read.run[0] == "m70-10 (id000)"  # a crashed run has the same name
    assert {"batch.size", "lr", "data"} <= set(read.extra)
    assert not any("betas" in name or "bins" in name or name.startswith("_") for name in read.extra)


def test_histories_give_the_last_loss_of_each_run(server):
    import wandb

    runs = list(wandb.Api().runs("me/histories", lazy=False))
    scanned = [{"run": run.name, **run.config, **row} for run in runs for row in run.scan_history()]
    sampled = [{"run": run.name, **run.config, **row} for run in runs for row in run.history(pandas=False)]
    frame = pd.DataFrame(sampled)
    for table in (scanned, sampled, frame, frame.to_dict("list")):
        read = Observations.of(table)
        np.testing.assert_allclose(read.loss, [loss for _, _, _, loss in rows()[::6]])
        np.testing.assert_allclose(read.points.tokens, [D for _, _, D, _ in rows()[::6]])


@pytest.mark.parametrize(
    ("address", "problem"),
    [("wandb:me/empty", "the project has no runs"), ("wandb:me/other", "cannot be read: 'Could not find project")],
)
def test_a_project_without_runs_is_named(address, problem, server):
    with pytest.raises(InputError, match=f"{address}: {problem}"):
        Observations.of(address)
