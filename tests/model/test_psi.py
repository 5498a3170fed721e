"""Expert-path diversity, by its definition."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from looped_models import model, tokens

from loopscale.core.errors import InputError
from loopscale.model.passes import LIMIT, overlap, pass_diagnostics
from loopscale.model.prompt_set import TASKS, prompt_set
from loopscale.model.prompts import batches_by_length
from loopscale.model.psi import Moments, departures, diversity, path_diversity


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), passes=st.integers(1, 4), k=st.integers(1, 3))
def test_psi_is_the_size_of_the_union_over_passes_for_each_active_expert(seed: int, passes: int, k: int) -> None:
    scores = torch.rand(passes, 2, 3, 4, 5, generator=torch.Generator().manual_seed(seed))
    ids = scores.topk(k).indices
    found = diversity(ids, experts=5)
    for R in range(1, passes + 1):
        for layer in range(2):
            for row in range(3):
                for token in range(4):
                    union = {int(each) for place in range(R) for each in ids[place, layer, row, token]}
                    assert found[R - 1, layer, row, token] == pytest.approx(len(union) / k)


def test_psi_is_exactly_one_at_r_1_and_for_a_dense_model() -> None:
    batch = [(tokens(3, 8), torch.ones(3, 8, dtype=torch.long))]
    routed = path_diversity(model(), batch, recurrence=4).table().columns
    assert routed["psi"][0] == 1.0
    assert routed["std_tokens"][0] == routed["std_prompts"][0] == routed["std_layers"][0] == 0.0
    assert all(before <= after for before, after in zip(routed["psi"], routed["psi"][1:], strict=False))
    assert routed["psi"][3] > 1
    dense = path_diversity(model(num_experts=1), batch, recurrence=4).table().columns
    assert dense["psi"] == [1.0] * 4
    assert dense["experts"] == [1.0] * 4


def test_one_forward_gives_the_psi_of_every_smaller_recurrence() -> None:
    batch = [(tokens(3, 8), torch.ones(3, 8, dtype=torch.long))]
    whole = path_diversity(model(), batch, recurrence=4).table().columns["psi"]
    for R in (1, 2, 3):
        assert path_diversity(model(), batch, recurrence=R).table().columns["psi"] == whole[:R]


def test_streaming_in_batches_equals_all_at_once() -> None:
    ids, mask = tokens(6, 8), torch.ones(6, 8, dtype=torch.long)
    at_once = path_diversity(model(), [(ids, mask)]).table().columns
    streamed = path_diversity(model(), zip(ids.split(2), mask.split(2), strict=True)).table().columns
    for name, column in at_once.items():
        assert streamed[name] == pytest.approx(column), name


def test_padding_counts_for_nothing() -> None:
    ids, mask = tokens(2, 8), torch.ones(2, 8, dtype=torch.long)
    expected = path_diversity(model(), [(ids, mask)]).table().columns
    wider = torch.cat((torch.zeros(2, 5, dtype=torch.long), ids), dim=1)
    hidden = torch.cat((torch.zeros(2, 5, dtype=torch.long), mask), dim=1)
    found = path_diversity(model(), [(wider, hidden)]).table().columns
    for name, column in expected.items():
        assert found[name] == pytest.approx(column), name


def test_moments_stay_exact_over_a_long_stream() -> None:
    values = 1e6 + torch.rand(2, 1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    moments = Moments()
    for part in values.split(7, dim=1):
        moments.add(part)
    torch.testing.assert_close(moments.mean_R, values.mean(1))
    torch.testing.assert_close(moments.std_R, values.std(1), rtol=1e-6, atol=0)


def test_a_model_without_a_loop_and_data_without_tokens_are_refused() -> None:
    with pytest.raises(InputError, match="no loop block"):
        path_diversity(model(loop_layers=0, recurrence=1), [])
    with pytest.raises(InputError, match="the data is empty"):
        path_diversity(model(), []).table()


def whole(rows: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(tokens(rows, 8), torch.ones(rows, 8, dtype=torch.long))]


def test_the_overlap_is_the_jaccard_index_of_two_passes() -> None:
    ids = torch.tensor([[[[0, 1]], [[2, 3]]], [[[1, 2]], [[2, 3]]]]).squeeze(2)  # two passes, two layers, one token
    assert overlap(ids[:, :, None], 4).flatten().tolist() == pytest.approx([2, 4 / 3, 4 / 3, 2])


@pytest.mark.parametrize("options", [{}, {"residual_scale": "1/R"}, {"injection": "diagonal", "pass_norms": True}])
def test_diagnostics_by_pass_are_those_of_the_models_own_outputs(options: dict[str, object]) -> None:
    made, ((ids, mask),) = model(**options), whole()
    found = pass_diagnostics(made, [(ids, mask)], recurrence=4)
    columns = found.table().columns
    for R in (1, 2, 3, 4):
        assert columns["loss"][R - 1] == pytest.approx(made(ids, labels=ids, recurrence=R).loss.item(), rel=1e-5)
    out = made(ids, recurrence=4, output_passes=True, output_routing=True)
    chosen = out.routing.loop
    assert columns["distinct"][3] == pytest.approx(2 * diversity(chosen, 6)[3].mean().item())
    pairs = [
        len(set(one.tolist()) & set(other.tolist())) / len(set(one.tolist()) | set(other.tolist()))
        for one, other in zip(chosen[1].flatten(0, 2), chosen[2].flatten(0, 2), strict=True)
    ]
    assert columns["overlap_previous"][2] == pytest.approx(sum(pairs) / len(pairs))
    assert columns["overlap_first"][0] == 1.0
    second, third = out.pass_states[1:3]
    change = ((third - second).norm(dim=-1) / third.norm(dim=-1)).mean()
    assert columns["change"][2] == pytest.approx(change.item())
    assert columns["variance"][2] == pytest.approx(third.flatten(0, 1).var(0, unbiased=False).mean().item())


def test_the_distance_to_the_fixed_point_is_that_to_a_much_later_pass() -> None:
    made, ((ids, mask),) = model(), whole()
    columns = pass_diagnostics(made, [(ids, mask)], recurrence=3).table().columns
    states = made(ids, recurrence=3 * LIMIT, output_passes=True).pass_states
    for index in range(3):
        apart = ((states[index] - states[-1]).norm(dim=-1) / states[-1].norm(dim=-1)).mean()
        assert columns["distance"][index] == pytest.approx(apart.item())


def test_diagnostics_stream_and_leave_out_padding_and_what_a_model_lacks() -> None:
    ids, mask = tokens(4, 8), torch.ones(4, 8, dtype=torch.long)
    at_once = pass_diagnostics(model(), [(ids, mask)], 3).table().columns
    wider = torch.cat((torch.zeros(4, 2, dtype=torch.long), ids), 1), torch.cat((torch.zeros(4, 2).long(), mask), 1)
    streamed = pass_diagnostics(model(), [(ids[:1], mask[:1]), (wider[0][1:], wider[1][1:])], 3).table().columns
    for name, column in at_once.items():
        if name != "loss":  # rotary positions of padded rows are shifted, which rounds differently
            assert streamed[name] == pytest.approx(column, rel=1e-6, nan_ok=True), name
    dense = pass_diagnostics(model(num_experts=1), [(ids, mask)], 3)
    assert "overlap_first" not in dense.table().columns
    assert dense.overlap_RR is None


def numpy_psi(found, k: int) -> list[float]:
    """Return Psi(1..R) from router ids alone, prompt by prompt, with sets instead of tensors."""
    R = len(found[0])
    means = []
    for ids_RLTK in found:
        passes, layers, length, _ = ids_RLTK.shape
        unions = [
            [len({int(e) for r in range(upto) for e in ids_RLTK[r, layer, t]}) / k
             for layer in range(layers) for t in range(length)]
            for upto in range(1, passes + 1)
        ]  # fmt: skip
        means.append([float(np.mean(each)) for each in unions])
    return [float(np.mean([row[place] for row in means])) for place in range(R)]


class Letters:
    """A tokenizer of one token a letter."""

    def __call__(self, text: str, truncation: bool, max_length: int) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) % 61 for letter in text][:max_length]}


def test_psi_is_the_same_in_batches_of_1_8_and_32_and_from_router_ids_with_numpy() -> None:
    looped = model(num_experts=8, recurrence=3).float()
    prompts = [prompt for listed in prompt_set(8).values() for prompt in listed]
    measured = {}
    for size in (1, 8, 32):
        parts = ((ids, mask) for _, ids, mask in batches_by_length(Letters(), prompts, size, 24))
        measured[size] = path_diversity(looped, parts).table().columns
    for size in (8, 32):
        for name in ("psi", "std_prompts", "psi_tokens"):
            assert measured[size][name] == pytest.approx(measured[1][name], abs=1e-6)
    ids_by_prompt = []
    with torch.no_grad():
        for prompt in prompts:
            ids = torch.tensor([Letters()(prompt, True, 24)["input_ids"]])
            trace = looped.model(ids, torch.ones_like(ids), use_cache=False, recurrence=3, output_routing=True).routing
            ids_by_prompt.append(trace.loop[:, :, 0].numpy())
    expected = numpy_psi(ids_by_prompt, looped.config.num_experts_per_tok)
    assert measured[32]["psi"] == pytest.approx(expected, abs=1e-6)
    assert 1 < expected[2] <= 3


def test_psi_by_layer_and_by_task_average_to_the_whole() -> None:
    parts, tasks = [], ("math", "code", "math")
    ids = tokens(3, 8)
    parts.append((ids, torch.ones_like(ids), tasks))
    found = path_diversity(model(), parts, recurrence=3)
    whole = found.table().columns
    layers = list(found.by_layer().records())
    last = [row["psi"] for row in layers if row["recurrence"] == 3]
    assert np.mean(last) == pytest.approx(whole["psi_tokens"][2])
    by_task = {row["task"]: row for row in found.by_task().records() if row["recurrence"] == 3}
    assert by_task["math"]["prompts"] == 2
    assert (2 * by_task["math"]["psi"] + by_task["code"]["psi"]) / 3 == pytest.approx(whole["psi"][2])


def test_departures_from_bounds_and_monotonicity_are_said() -> None:
    assert departures({(1, 1): 1, (1, 2): 1, (4, 1): 1, (4, 2): 1.3}) == []
    assert departures({(4, 2): 2.5}) == ["Psi at E = 4, R = 2 is 2.5000, outside 1 to 2"]
    assert departures({(4, 2): 1.5, (4, 4): 1.4}) == ["Psi falls with R at E = 4, after R = 2"]
    assert departures({(4, 2): 1.5, (8, 2): 1.4}) == ["Psi falls with E at R = 2, after E = 4"]


def test_the_shipped_prompts_are_800_different_short_ones_and_always_the_same() -> None:
    found = prompt_set()
    assert {task: len(set(prompts)) for task, prompts in found.items()} == dict.fromkeys(TASKS, 160)
    everything = [prompt for prompts in found.values() for prompt in prompts]
    assert len(set(everything)) == 800
    assert max(map(len, everything)) < 200
    digest = hashlib.sha256("\n".join(everything).encode()).hexdigest()
    assert digest[:12] == "f5f91d715bf5"
    assert prompt_set(5)["math"] == found["math"][:5]
