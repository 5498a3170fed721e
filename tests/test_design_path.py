"""One design from a plan to a model: the same sizes and experts in every place that states them."""

import json
import random
import tomllib
from typing import Any

import pytest
from click.testing import CliRunner

from loopscale.cli.verbs import cli
from loopscale.core.devices import USABLE, find_device
from loopscale.core.errors import InputError
from loopscale.core.quantities import format_count
from loopscale.planning import Plan, plan, search
from loopscale.planning.cluster import Cluster
from loopscale.planning.compute import device_flops
from loopscale.planning.design import card_size, experts_text, sizes_text
from loopscale.planning.device_search import search_on
from loopscale.planning.job import expected_days
from loopscale.train.auto import settled
from loopscale.train.config import TrainConfig
from loopscale.train.init import meta_model
from loopscale.train.job import model_without_text, step_cost

LIMITS = ("--memory", "3GB", "--bits", "int4")


def test_a_planned_design_is_the_one_that_is_built(tmp_path) -> None:
    file, report = tmp_path / "train.toml", tmp_path / "plan.md"
    done = CliRunner().invoke(cli, ["plan", "--flops", "5e21", *LIMITS, "--train", str(file), "--report", str(report)])
    assert done.exit_code == 0, done.output
    planned = Plan.of(search(flops=5e21, memory="3GB", bits=4))
    choice = planned.choice
    active, total = card_size(choice.active_parameters), card_size(choice.total_parameters)
    experts = experts_text(choice.experts_active, choice.experts_total)
    sizes = f"{active} active, {total} total, {experts}, looped twice"
    assert sizes == "1.0B active, 5.4B total, 2 of 16 experts, looped twice"
    assert f"{active} MoE · {experts} · looped 2x" in done.output
    assert f"{total} total, {active} active" in done.output
    assert f"{active}-active, {total}-total MoE ({experts})" in " ".join(report.read_text().split())
    assert sizes in file.read_text()
    rung = ("--rung", choice.rung, "--experts", f"{choice.experts:g}", "--recurrence", str(choice.recurrence))
    counted = CliRunner().invoke(cli, ["count", *rung]).output
    exactly = (format_count(number, 4) for number in (choice.total_parameters, choice.active_parameters))
    assert "{} total, {} active · {}".format(*exactly, experts) in counted
    checked = CliRunner().invoke(cli, ["train", str(file), "--check"]).output
    assert sizes in checked
    config = TrainConfig.read(file)
    assert planned.train_config() == tomllib.loads(file.read_text())
    model = meta_model(model_without_text(config))
    assert sum(weight.numel() for weight in model.parameters()) == choice.total_parameters
    assert model.config.num_experts == choice.experts_total
    assert config.run.tokens == round(choice.tokens)


def test_python_plans_for_devices_as_the_command_line_does(tmp_path) -> None:
    file, asked = (
        tmp_path / "train.toml",
        ("--gpus", "16", "--device", "a100", "--days", "2weeks", "--utilisation", "50%"),
    )
    done = CliRunner().invoke(cli, ["plan", *asked, *LIMITS, "--train", str(file), "--json"])
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    planned = plan(gpus=16, device="a100", days="2weeks", utilisation="50%", memory="3GB", bits="int4")
    assert planned.to_dict()["choice"] == shown["choice"]
    assert planned.devices.days == pytest.approx(shown["devices"]["days"]) == pytest.approx(14, rel=0.01)
    assert planned.train_config() == tomllib.loads(file.read_text())
    checked = json.loads(CliRunner().invoke(cli, ["train", str(file), "--check", "--json"]).stdout)
    assert (checked["device"], checked["gpus"]) == ("a100", 16)
    assert checked["days"] == pytest.approx(planned.devices.days, rel=0.01)
    assert checked["memory"] == pytest.approx(planned.devices.memory)
    counted = json.loads(CliRunner().invoke(cli, ["count", str(file), "--bits", "4", "--json"]).stdout)
    assert counted["weight_bytes"] == pytest.approx(planned.choice.weight_bytes)
    assert counted["train_flops_per_token"] * planned.choice.tokens == pytest.approx(planned.choice.train_flops)
    assert counted["real_train_flops_per_token"] * planned.choice.tokens == pytest.approx(
        planned.choice.real_train_flops
    )


@pytest.mark.parametrize(
    ("compute", "problem"),
    [
        ({"gpus": 8}, "days: missing; give `days` with `gpus`"),
        ({"gpus": 8, "days": 3, "flops": 1e21}, "both state the compute"),
        ({"gpus": 8, "days": "3 fortnights"}, "is not a time"),
        ({"gpus": 8, "days": 3, "device": "h1000"}, "did you mean 'h100'"),
    ],
)
def test_compute_in_devices_is_stated_once_and_whole(compute: dict[str, object], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        plan(memory="3GB", **compute)


def random_case(seed: int) -> tuple[str, int, int, dict[str, object]]:
    draw = random.Random(seed)
    device, gpus = draw.choice(["h100", "a100", "h200", "b200", "h100-96gb", "l40s"]), draw.choice([8, 16, 24, 64])
    limits = {"memory": draw.choice(["1GB", "3GB", "6GB", "12GB"]), "bits": draw.choice(["q4_k_m", 4, 8])}
    return device, gpus, draw.choice([3, 7, 21]), limits


@pytest.mark.parametrize("seed", range(8))
def test_a_training_file_has_the_plans_sizes_and_days_and_fits(seed: int) -> None:
    device, gpus, days, limits = random_case(seed)
    cluster = Cluster(device, gpus)
    found = search_on(cluster, real_flops=device_flops(gpus * days * 24, device), extrapolate=True, **limits)
    planned = Plan.of(found, whole=False)
    text = planned.train_file(cluster)
    config = TrainConfig.from_dict(tomllib.loads(text))
    assert (config.resources.device, config.resources.gpus) == (device, gpus)
    model = model_without_text(config)
    assert float(model.to_architecture().parameters) == planned.choice.total_parameters
    assert model.recurrence == planned.choice.recurrence
    cost = step_cost(config, model, gpus, find_device(device))
    assert expected_days(cost.seconds, config.steps) == pytest.approx(cluster.cost(planned.choice).days, rel=0.1)
    assert cost.memory <= USABLE * find_device(device).memory or "does not fit" in text


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_random_plan_is_what_its_file_checks_and_simulates(seed: int, tmp_path) -> None:
    device, gpus, days, limits = random_case(seed)
    file, asked = tmp_path / "train.toml", ("--gpus", gpus, "--device", device, "--days", days, "--extrapolate")
    given = (str(word) for word in (*asked, "--memory", limits["memory"], "--bits", limits["bits"]))

    def answer(*arguments: str) -> dict[str, Any]:
        done = CliRunner().invoke(cli, [*arguments, "--json"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    planned = answer("plan", *given, "--train", str(file))
    checked, simulated = (answer("train", str(file), option) for option in ("--check", "--estimate"))
    memory, time = planned["devices"]["memory"], planned["devices"]["days"]
    ratios = checked["memory"] / memory, simulated["peak_bytes"] / memory, checked["days"] / time
    print(
        seed,
        device,
        gpus,
        planned["choice"]["label"],
        *(f"{ratio:.3f}" for ratio in (*ratios, simulated["days"] / time)),
    )
    assert simulated["fits"]
    assert simulated["sizes"] == sizes_text(model_without_text(TrainConfig.read(file)).to_architecture())
    assert ratios == pytest.approx((1.0, 1.0, 1.0), rel=0.1)
    assert simulated["days"] == pytest.approx(time, rel=0.1)


def test_a_run_keeps_the_settings_that_it_chose(tmp_path) -> None:
    config = TrainConfig.from_dict({"run": {"accumulate": "auto"}})
    chosen = settled(config, tmp_path)
    assert isinstance(chosen.run.accumulate, int)
    from loopscale.train.run_dir import open_run

    open_run(tmp_path, chosen.changed(run={"accumulate": 4}), 0)
    assert settled(config, tmp_path).run.accumulate == 4
