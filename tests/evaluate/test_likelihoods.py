"""Log-likelihoods through lm-eval equal direct computation, at every recurrence and batch size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lm_eval.api.instance import Instance

from loopscale.evaluate.lm import LoopedLM
from loopscale.model import Exit, loading

UNEVEN = [
    ("The old man", " walked to the river"),
    ("A", " b"),
    ("It was a quiet morning near the harbour, and", " nobody spoke"),
    ("", "no context at all"),
    ("The cat", " sat"),
    ("The cat", " ran away"),
]
EVEN = [("The cat", " sat"), ("The dog", " ran"), ("The man", " saw")]


@pytest.fixture(scope="module")
def parts(untrained: Path) -> tuple:
    return loading.load_model(untrained), loading.load_tokenizer(untrained, None)


def direct(model, words, context: str, continuation: str, recurrence: int) -> tuple[float, bool]:
    """Return the log-likelihood and whether it is greedy, from one forward without padding."""
    before = words.encode(context) or [words.eos_token_id]
    after = words.encode(continuation)
    with torch.no_grad():
        logits = model(torch.tensor([before + after]), recurrence=recurrence).logits[0]
    predicted = logits[len(before) - 1 : -1].double().log_softmax(-1)
    target = torch.tensor(after)
    return float(predicted.gather(1, target[:, None]).sum()), bool((predicted.argmax(-1) == target).all())


@pytest.mark.parametrize("recurrence", [1, 4])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("pairs", [UNEVEN, EVEN], ids=["padded", "not padded"])
def test_log_likelihoods_equal_direct_computation(parts, recurrence: int, batch: int, pairs: list):
    lm = LoopedLM(parts[0], recurrence=recurrence, tokenizer=parts[1], batch_size=batch)
    requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
    for found, pair in zip(lm.loglikelihood(requests, disable_tqdm=True), pairs, strict=True):
        expected = direct(*parts, *pair, recurrence)
        assert found[0] == pytest.approx(expected[0], abs=1e-4)
        assert found[1] == expected[1]


@pytest.mark.parametrize("recurrence", [1, 4])
@pytest.mark.parametrize("batch", [1, 4])
def test_rolling_log_likelihoods_equal_direct_computation(parts, recurrence: int, batch: int):
    lm = LoopedLM(parts[0], recurrence=recurrence, tokenizer=parts[1], batch_size=batch)
    texts = ["The old man walked to the river.", "Yes.", "It was a quiet morning."]
    requests = [Instance("loglikelihood_rolling", {}, (text,), i) for i, text in enumerate(texts)]
    found = lm.loglikelihood_rolling(requests, disable_tqdm=True)
    assert found == pytest.approx([direct(*parts, "", text, recurrence)[0] for text in texts], abs=1e-4)


@pytest.mark.parametrize("batch", [1, 3])
def test_greedy_answers_equal_generate(parts, batch: int):
    model, words = parts
    lm = LoopedLM(model, recurrence=2, tokenizer=words, batch_size=batch)
    prompts = ["The old man", "A", "It was a quiet"]
    asked = [(prompt, {"until": ["\n\n\n"], "max_gen_toks": 6}) for prompt in prompts]
    found = lm.generate_until([Instance("generate_until", {}, each, i) for i, each in enumerate(asked)], True)
    for prompt, text in zip(prompts, found, strict=True):
        ids = torch.tensor([words.encode(prompt)])
        out = model.generate(ids, max_new_tokens=6, do_sample=False, recurrence=2, pad_token_id=words.pad_token_id)
        assert text == words.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


def test_one_load_serves_every_recurrence(parts):
    lm = LoopedLM(parts[0], tokenizer=parts[1], batch_size=2)
    request = [Instance("loglikelihood", {}, UNEVEN[0], 0)]
    values = []
    for recurrence in (1, 2, 4):
        lm.recurrence = recurrence
        values.append(lm.loglikelihood(request, disable_tqdm=True)[0][0])
        assert values[-1] == pytest.approx(direct(*parts, *UNEVEN[0], recurrence)[0], abs=1e-4)
    assert len({round(value, 3) for value in values}) == 3


def test_passes_are_counted_on_scored_and_generated_tokens_only(parts):
    lm = LoopedLM(parts[0], recurrence=4, exit=Exit("kl", 0.0), tokenizer=parts[1], batch_size=3)
    lm.loglikelihood([Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(UNEVEN)], disable_tqdm=True)
    assert lm.passes.count == sum(len(parts[1].encode(continuation)) for _, continuation in UNEVEN)
    assert lm.passes.mean == 4
    scored = lm.passes.count
    lm.generate_until([Instance("generate_until", {}, ("The", {"until": ["\0"], "max_gen_toks": 5}), 0)], True)
    assert scored < lm.passes.count <= scored + 5


def test_the_model_is_registered_with_the_harness(untrained: Path):
    from lm_eval.api.registry import get_model

    lm = get_model("loopscale")(pretrained=str(untrained), recurrence=4, device="cpu", batch_size=2)
    model, words = loading.load_model(untrained), loading.load_tokenizer(untrained, None)
    found = lm.loglikelihood([Instance("loglikelihood", {}, UNEVEN[0], 0)], disable_tqdm=True)
    assert found[0][0] == pytest.approx(direct(model, words, *UNEVEN[0], 4)[0], abs=1e-4)
