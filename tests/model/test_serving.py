"""The OpenAI-compatible server: a recurrence for each request, and the tokens of ``generate``."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from loopscale.cli.serve import serve_command
from loopscale.model.loading import DEMO, load

pytest.importorskip("openai")
from fastapi.testclient import TestClient

from loopscale.model.serving import build_app

PROMPT = "The state of"


@pytest.fixture(scope="module")
def demo() -> tuple[Any, Any]:
    return load(DEMO, dtype=torch.float32)


@pytest.fixture(scope="module")
def client(demo: tuple[Any, Any]) -> Iterator[TestClient]:
    with TestClient(build_app(*demo, "demo")) as opened:
        yield opened


def written(demo: tuple[Any, Any], recurrence: int, new: int = 8) -> str:
    """Return what ``generate`` writes."""
    model, tokenizer = demo
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    out = model.generate(ids, max_new_tokens=new, do_sample=False, recurrence=recurrence, pad_token_id=0)
    return str(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))


def asked(client: TestClient, **fields: Any) -> Any:
    body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, **fields}
    return client.post("/v1/completions", json=body)


def test_each_request_has_its_own_recurrence(client: TestClient, demo: tuple[Any, Any]) -> None:
    replies: dict[int, Any] = {}

    def ask(recurrence: int) -> None:
        replies[recurrence] = asked(client, recurrence=recurrence).json()

    threads = [threading.Thread(target=ask, args=(R,)) for R in (1, 2, 4, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {R: reply["choices"][0]["text"] for R, reply in replies.items()} == {
        R: written(demo, R) for R in (1, 2, 4, 6)
    }
    assert replies[2]["model"] == "demo@2"
    assert demo[0].config.recurrence == 4


def test_the_model_name_may_hold_the_recurrence(client: TestClient, demo: tuple[Any, Any]) -> None:
    assert asked(client, model="demo@1").json()["choices"][0]["text"] == written(demo, 1)
    names = [model["id"] for model in client.get("/v1/models").json()["data"]]
    assert names == ["demo", "demo@1", "demo@2", "demo@3", "demo@4"]


def test_tokens_are_streamed(client: TestClient, demo: tuple[Any, Any]) -> None:
    lines = [line for line in asked(client, recurrence=2, stream=True).text.splitlines() if line.startswith("data: {")]
    texts = [choice["text"] for line in lines for choice in json.loads(line[6:])["choices"]]
    assert "".join(texts) == written(demo, 2)
    assert len(texts) > 4


def test_a_conversation_is_answered(client: TestClient) -> None:
    body = {"messages": [{"role": "user", "content": "Hello"}], "recurrence": 3, "max_tokens": 4}
    reply = client.post("/v1/chat/completions", json=body).json()
    assert reply["model"] == "demo@3"
    assert reply["usage"]["completion_tokens"] <= 4


def test_a_request_ends_at_the_last_position(client: TestClient) -> None:
    usage = asked(client, recurrence=1, max_tokens=999).json()["usage"]
    assert usage["total_tokens"] <= 129  # the last token is never read


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"recurrence": 0}, 400, "it should be a whole number from 1"),
        ({"model": "demo@many"}, 400, "it should be a whole number from 1"),
        ({"model": "other"}, 404, "'other' is not served here"),
        ({"prompt": "war " * 300}, 400, "and the model 128 positions"),
        ({"recurence": 2}, 422, "recurence"),
        # Transformers' handlers answer these with a server error.
        ({"prompt": ""}, 400, "prompt is ''; it should be a text"),
        ({"max_tokens": -1}, 400, "max_tokens is -1; it should be a whole number"),
        ({"temperature": "x"}, 400, "temperature is 'x'; it should be a number"),
        ({"top_p": 2}, 400, "top_p is 2; it should be"),
        ({"seed": 1e300}, 400, "seed is 1e+300; it should be"),
        ({"stop": []}, 400, "stop is []; it should be a text"),
    ],
)
def test_bad_requests_are_refused_in_a_sentence(
    client: TestClient, fields: dict[str, Any], status: int, said: str
) -> None:
    reply = asked(client, **fields)
    assert reply.status_code == status
    assert said in reply.json()["detail"]
    assert said in reply.json()["error"]["message"]  # all that OpenAI's clients show


def test_a_stop_text_that_no_tokens_give_is_refused(
    client: TestClient, demo: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("no tokens match the stop string")

    monkeypatch.setattr("transformers.generation.stopping_criteria.StopStringCriteria.__init__", refuse)
    reply = asked(client, stop="the")
    assert (reply.status_code, "no tokens match the stop string" in reply.text) == (400, True)


def test_requests_are_batched_by_recurrence(demo: tuple[Any, Any]) -> None:
    with TestClient(build_app(*load(DEMO, dtype=torch.float32), "demo", batching=True)) as batched:
        for R in (2, 1):
            assert asked(batched, recurrence=R, max_tokens=4).json()["choices"][0]["text"] == written(demo, R, 4)
        assert batched.get("/health").json() == {"status": "ok"}


def test_a_run_is_served_under_the_name_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "first"
    shutil.copytree(DEMO, run / "model")
    (run / "run.json").write_text("{}")
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: [socket.close() for socket in sockets])
    for folder in (run, run / "model"):
        done = CliRunner().invoke(serve_command, [str(folder), "--port", "0"])
        assert done.output.startswith("first at http://127.0.0.1:"), done.output


def test_other_machines_need_a_token() -> None:
    done = CliRunner().invoke(serve_command, ["demo", "--host", "0.0.0.0"])
    assert done.exit_code == 2
    assert "give --token SECRET" in done.output
