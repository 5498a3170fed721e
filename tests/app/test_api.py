"""The HTTP API answers as the command line does, and refuses in one sentence."""

import json
import shlex
import subprocess

import pytest

from loopscale.app.schemas import Mapping, Outer
from loopscale.architecture import rung
from loopscale.cli import main
from loopscale.scaling import MAPPINGS, OUTER_LAWS, PUBLISHED
from loopscale.train.config import TrainConfig
from pages import ROOT, all_steps

BUDGET = {"flops": "5e21", "memory": "3GB", "bits": "int4"}


def printed(capsys, *arguments: str) -> dict:
    with pytest.raises(SystemExit):
        main(arguments)
    return json.loads(capsys.readouterr().out)


def test_the_plan_is_the_command_lines(client, capsys):
    told = printed(capsys, "plan", "--flops", "5e21", "--memory", "3GB", "--bits", "int4", "--json")
    answer = client.send("/api/plan", BUDGET).json
    assert answer["plan"] == told
    assert answer["sentences"]["answer"].startswith(
        "Train a 1.0B-active, 5.4B-total MoE (2 of 16 experts), looped twice"
    )


MINE = PUBLISHED["looped-moe-2026"].to_dict() | {"name": "my law"}
POOR = MINE | {"name": "poor", "degenerate": ["only two sizes"]}
COPIED = [
    BUDGET,
    {"flops": "5.123456e21", "memory": "3.14159 GB", "bits": 4.5, "context": 8192, "serve_tokens": "1.2345678T"},
    {"flops": "5e21", "memory": "40 GB", "context": 4096, "max_tokens": "400B", "inference_flops": "2.345678B"},
    BUDGET | {"rungs": ["0.3B", "0.6B"], "experts": [1, 4], "recurrences": [1, 2, 3], "eps": 0.0123},
    {"flops": "1e21", "experts": [1, 2], "rule": "loss"},
    BUDGET | {"continuous": True, "experts": [4], "recurrences": [1, 2]},
    {"flops": "1e21", "law": "chinchilla-2022", "rule": "loss"},
    {"flops": "1e26", "extrapolate": True},
    {"gpus": 16, "days": 14, "device": "a100", "utilisation": "50%", "memory": "3GB", "bits": "int4"},
    BUDGET | {"law": MINE},
    BUDGET | {"law": POOR, "allow_degenerate": True},
]


@pytest.mark.parametrize("asked", COPIED, ids=lambda asked: ",".join(asked))
def test_what_is_copied_runs_and_gives_the_plan_of_the_page(client, capsys, monkeypatch, tmp_path, asked):
    monkeypatch.chdir(tmp_path)
    for law in (MINE, POOR):
        (tmp_path / f"{law['name']}.json").write_text(json.dumps(law))
    answer = client.send("/api/plan", asked).json
    choice, copied = answer["plan"]["choice"], answer["copy"]
    told = printed(capsys, *shlex.split(copied["command"])[1:], "--json")
    names: dict = {}
    exec(copied["python"], names)
    for other in (told["choice"], names["best"].to_dict()["choice"]):
        assert other["label"] == choice["label"]
        assert other["loss"] == pytest.approx(choice["loss"], abs=1e-12)
        assert other["tokens"] == pytest.approx(choice["tokens"], rel=1e-12)
    (tmp_path / "run.toml").write_text(copied["config"])
    written = TrainConfig.read(tmp_path / "run.toml")
    assert (written.resources.gpus, written.resources.device) == (asked.get("gpus", 8), asked.get("device", "h100"))
    trained = written.model
    active = rung(trained.rung, trained.experts).active
    assert active == pytest.approx(choice["active"], rel=0.3 if "nearest size" in copied["config"] else 1e-12)
    assert (trained.experts, trained.recurrence) == (choice["experts"], choice["recurrence"])


def test_numbers_and_text_mean_the_same(client):
    numbers = client.send("/api/plan", {"flops": 5e21, "memory": 3e9, "bits": 4}).json
    assert numbers == client.send("/api/plan", BUDGET).json


def test_the_prediction_is_the_command_lines(client, capsys):
    asked = ("--rung", "1.0B", "--experts", "8", "--recurrence", "2", "--tokens", "500B")
    told = printed(capsys, "predict", *asked, "--json")
    assert client.send("/api/predict", {"rung": "1.0B", "experts": 8, "recurrence": 2, "tokens": "500B"}).json == told


def test_the_table_comes_as_csv(client):
    rows = client.send("/api/plan.csv", BUDGET | {"top": 300}).body.decode().splitlines()
    assert len(rows) == 301
    assert rows[1].startswith("1.0B,1280,32,8,2")


def test_the_published_laws_are_listed_and_fetched(client):
    listed = client.send("/api/laws").json
    assert [law["id"] for law in listed["laws"]] == list(PUBLISHED)
    assert client.send("/api/laws/chinchilla-2022").json == PUBLISHED["chinchilla-2022"].to_dict()


def test_ones_own_law_plans_by_its_id_or_as_it_is(client):
    law = PUBLISHED["looped-moe-2026"].to_dict() | {"name": "mine", "rmse": 0.01}
    kept = client.send("/api/laws", law).json
    by_id = client.send("/api/plan", BUDGET | {"law": kept["id"]}).json
    assert by_id == client.send("/api/plan", BUDGET | {"law": law}).json
    assert by_id["plan"]["law"] == "mine"
    assert by_id["plan"]["eps"] == 0.01


def test_the_typed_choices_are_the_ones_there_are():
    assert Mapping.__args__ == tuple(MAPPINGS)
    assert Outer.__args__ == tuple(OUTER_LAWS)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"flops": "5x"}, "flops: '5x' is not a positive number; write it like 5e21"),
        ({"flops": -1}, "flops: '-1.0' is not a positive number"),
        ({"memory": "3GB"}, "give training compute (`flops`) or training tokens (`tokens`)"),
        ({**BUDGET, "memory": "1MB"}, "memory: nothing fits in 1 MB at 4 bits; the smallest candidate"),
        ({**BUDGET, "flpos": 1}, "flpos: extra inputs are not permitted"),
        ({**BUDGET, "law": "../../etc/passwd"}, "law '../../etc/passwd' is not known here"),
        ({**BUDGET, "law": "law.json"}, "law 'law.json' is not known here"),
        ({**BUDGET, "law": "chinchilla-2022"}, "states no RMSE to take as eps"),
        ({**BUDGET, "rungs": ["9B"]}, "rung '9B' is not on the ladder"),
        ({**BUDGET, "continuous": True, "experts": list(range(1, 17)), "recurrences": list(range(1, 33)),
          "law": PUBLISHED["looped-moe-2026"].to_dict()
          | {"resamples": [list(PUBLISHED["looped-moe-2026"].coefficients.values())] * 20}}, "too large"),
    ],
)  # fmt: skip
def test_a_bad_plan_is_refused_in_a_sentence(client, asked, says):
    answer = client.send("/api/plan", asked)
    assert answer.status in (404, 422)
    assert says in answer.json["error"]
    assert "\n" not in answer.json["error"]


@pytest.mark.parametrize(
    "body", [b'{"flops": NaN}', b'{"flops": Infinity}', b'{"flops": 1e999}', b"{", b"\xff\xfe", b"[]"]
)
def test_what_is_no_json_object_or_no_number_is_refused(client, body):
    answer = client.send("/api/plan", body, content_type="application/json")
    assert answer.status in (400, 422)
    assert answer.json["error"]


def test_deeply_nested_json_is_refused(client):
    answer = client.send("/api/plan", b'{"law":' * 50_000 + b"1" + b"}" * 50_000, content_type="application/json")
    assert answer.status in (400, 422)


def test_paths_lead_nowhere(client):
    for path in ("/..%2f..%2fpyproject.toml", "/%2e%2e/server.py", "/api/../../server.py", "/static/../server.py"):
        assert client.send(path).status == 404


def test_the_requests_that_the_page_shows_are_answered(address, sweep_csv, tmp_path):
    (tmp_path / "runs.csv").write_bytes(sweep_csv)
    shown = [step.text for step in all_steps(ROOT / "docs" / "app.md") if step.text.startswith("curl ")]
    answers: list[dict[str, object]] = []
    for line in shown:
        here = line.replace("http://", "").replace("localhost:8642", address.removeprefix("http://").rstrip("/"))
        job = str(answers[-1]["id"]) if "THE-ID" in here else ""
        done = subprocess.run(shlex.split(here.replace("THE-ID", job)), cwd=tmp_path, capture_output=True, check=True)
        answers.append(json.loads(done.stdout))
    plan, started, job = answers
    assert plan["plan"]["choice"]["label"] == "1.0B 2/16 R=2"
    assert started["id"] == job["id"]


def test_a_degenerate_law_predicts_and_plans_only_where_that_is_asked_for(client):
    law = PUBLISHED["looped-moe-2026"].to_dict() | {"degenerate": ["only two sizes"]}
    asked = {"rung": "1.0B", "experts": 8, "recurrence": 2, "tokens": "500B", "law": law}
    for route, request in (("/api/predict", asked), ("/api/plan", BUDGET | {"law": law})):
        refused = client.send(route, request)
        assert refused.status == 422
        assert "degenerate" in json.dumps(refused.json)
        assert client.send(route, request | {"allow_degenerate": True}).status == 200


def test_devices_without_days_are_refused_by_the_field_that_is_missing(client):
    for stated, missing in (({"gpus": 8}, "days"), ({"days": 14}, "gpus")):
        refused = client.send("/api/plan", stated | {"memory": "3GB"})
        assert (refused.status, refused.json["field"]) == (422, missing)
        assert refused.json["remedy"] == f"give `{missing}` with `{next(iter(stated))}`"
