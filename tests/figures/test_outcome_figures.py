"""Scores, Psi and training curves as drawn, against the paper's printed tables and small files."""

import json

import numpy as np
import pytest
from artists import line, lines, points

from loopscale.core.errors import InputError
from loopscale.core.tables import Table
from loopscale.figures import (
    METRICS,
    TEST_TIME,
    draw_downstream,
    draw_psi,
    draw_scores_by_recurrence,
    draw_test_time,
    draw_training,
    mean_scores,
    read_table,
)
from loopscale.figures.results import paper_psi, paper_results
from loopscale.figures.sweep_scores import along, draw_sweep_downstream

PAPER = paper_results()
PRINTED = {"A0.6B-2.9B MoE †": [50.2], "A0.3B-1.3B LoopMoE †": [36.6, 43.0, 46.0, 46.7, 46.9]}
"""The paper's Overall column."""


def error_line(axes, label):
    (found,) = [each for each in axes.containers if each.get_label() == label]
    return np.asarray(found.lines[0].get_xydata())


def test_the_mean_scores_are_the_papers_overall_column():
    for model, printed in PRINTED.items():
        rows = [row for row in mean_scores(PAPER).records() if row["model"] == model]
        assert [row["recurrence"] for row in rows] == list(range(1, len(printed) + 1))
        assert [row["score"] for row in rows] == pytest.approx(printed, abs=0.065)  # printed tasks are rounded
        assert {row["tasks"] for row in rows} == {14}


def test_scores_are_drawn_against_recurrence_and_the_reference_as_a_level_line():
    axes = draw_scores_by_recurrence(mean_scores(PAPER, "reasoning"))
    drawn = error_line(axes, "A0.3B-1.3B LoopMoE †")
    np.testing.assert_allclose(drawn[:, 0], [1, 2, 3, 4, 5])
    np.testing.assert_allclose(drawn[:, 1], [14.55, 28.35, 35.55, 36.5, 36.5])
    assert line(axes, "A0.6B-2.9B MoE † (R = 1)")[:, 1] == pytest.approx(36.35)


def test_equal_training_compute_is_joined_by_a_dashed_line():
    later = [{**row, "training_flops": 3e22, "value": row["value"] + 1} for row in PAPER.records()]
    axes = draw_downstream(mean_scores(type(PAPER).from_records([*PAPER.records(), *later])))
    matched = [each for each in axes.lines if each.get_gid() == "matched compute"]
    assert [each.get_xdata()[0] for each in matched] == [1.5e22, 3e22]
    assert {each.get_linestyle() for each in matched} == {"--"}
    assert error_line(axes, "A0.3B-1.3B LoopMoE †, R = 5")[0, 1] == pytest.approx(46.9, abs=0.05)


def test_models_of_one_training_compute_stand_under_one_another_so_that_none_hides_another():
    axes = draw_downstream(mean_scores(PAPER, "reasoning"))
    drawn = np.concatenate([each.lines[0].get_xydata() for each in axes.containers])
    np.testing.assert_allclose(drawn[:, 0], [36.35, 14.55, 28.35, 35.55, 36.5, 36.5])
    assert len(set(drawn[:, 1])) == len(drawn)
    assert "1.5e22 FLOPs" in axes.get_title(loc="left")


def test_psi_is_drawn_as_the_paper_prints_it():
    axes = draw_psi(paper_psi())
    np.testing.assert_allclose(error_line(axes, "E = 8"), [[1, 1], [2, 1.2099], [4, 1.4159], [8, 1.7035]])
    (bars,) = [each for each in axes.containers if each.get_label() == "E = 8"]
    low, high = bars.lines[2][0].get_segments()[3][:, 1]
    assert (high - low) / 2 == pytest.approx(0.0861)


def test_training_metrics_are_read_from_json_lines_and_drawn_over_tokens(tmp_path):
    rows = [{"step": k, "tokens": 2048 * k, "loss": 4 - 0.1 * k, "rate": 1e-3} for k in range(1, 6)]
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    axes = draw_training(read_table(path, METRICS))
    np.testing.assert_allclose(lines(axes, "loss")[0], [[row["tokens"], row["loss"]] for row in rows])


def test_test_time_recurrence_is_drawn_in_order_of_R(tmp_path):
    (tmp_path / "t.csv").write_text("recurrence,loss\n4,2.0\n1,2.5\n2,2.2\n")
    axes = draw_test_time(read_table(tmp_path / "t.csv", TEST_TIME))
    np.testing.assert_allclose(axes.containers[0].lines[0].get_xydata(), [[1, 2.5], [2, 2.2], [4, 2.0]])


@pytest.mark.parametrize(
    ("name", "text", "kind", "expected"),
    [
        ("a.csv", "recurrence,los\n1,2\n", TEST_TIME, "column 'loss' is missing"),
        ("b.csv", "recurrence,loss\n1,two\n", TEST_TIME, "row 1: loss is 'two'"),
        ("c.csv", "recurrence,loss\n", TEST_TIME, "no rows"),
        ("d.jsonl", '{"step": 1}\n[1]\n', METRICS, "line 2"),
        ("e.jsonl", '{"step": 1, "tokens": 2, "loss": NaN}\n', METRICS, "row 1: loss is nan"),
        ("f.jsonl", '{"step": 1, "tokens": 2, "loss": true}\n', METRICS, "finite number"),
    ],
)
def test_a_table_that_cannot_be_drawn_is_refused_by_name_and_row(tmp_path, name, text, kind, expected):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=expected):
        read_table(tmp_path / name, kind)


def test_scores_of_tasks_that_no_other_model_has_are_left_out_of_the_mean():
    row = {"metric": "acc", "stderr": 0.3, "training_flops": 1e20, "recurrence": 1}
    rows = [
        {"model": "a", "task": "piqa", "value": 50.0, **row},
        {"model": "a", "task": "boolq", "value": 90.0, **row},
        {"model": "b", "task": "piqa", "value": 60.0, **row},
    ]
    table = mean_scores(type(PAPER).from_records(rows))
    assert [(each["score"], each["tasks"]) for each in table.records()] == [(50.0, 1), (60.0, 1)]


def model_row(size, E, R, flops, score):
    return {
        "model": f"{size}-{E}-{R}-{flops:g}", "recurrence": R, "training_flops": flops, "group": "overall", "tasks": 2,
        "score": score, "stderr": 0.5, "size": size, "experts": E, "tokens": 1e11, "validation_loss": 2.0,
    }  # fmt: skip


SWEEP = Table.from_records(
    [model_row("small", E, 1, flops, 10 + E + np.log10(flops / 1e20)) for E in (1, 8) for flops in (1e20, 1e21)]
    + [model_row("large", E, 1, flops, 20 + E + np.log10(flops / 2e20)) for E in (1, 8) for flops in (2e20, 2e21)]
    + [model_row("small", 8, 4, flops, 30.0) for flops in (4e20, 4e21)]
)


def test_scores_at_equal_compute_are_interpolated_in_the_logarithm_of_compute():
    table = along(SWEEP, "experts")
    found = {(row["size"], row["experts"]): row for row in table.records() if row["interpolated"]}
    assert {row["training_flops"] for row in found.values()} == {5e20}
    assert found["small", 8]["score"] == pytest.approx(18 + np.log10(5))
    assert found["large", 1]["score"] == pytest.approx(21 + np.log10(2.5))
    assert set(found) == {(size, E) for size in ("small", "large") for E in (1, 8)}


def test_along_recurrence_the_dense_baseline_stands_beside_the_models_of_one_E():
    table = along(SWEEP, "recurrence")
    assert set(table.columns["curve"]) == {"dense, R = 1", "R = 1", "R = 4"}
    assert {row["experts"] for row in table.records() if row["curve"] != "dense, R = 1"} == {8}
    axes = draw_sweep_downstream(table)
    (matched,) = [each for each in axes.lines if each.get_gid() == "matched compute"]
    assert matched.get_xdata()[0] == 1e21
    assert "E = 8" in axes.get_title(loc="left")
    bars = sorted(points(axes, "interpolated")[:, 1])
    assert bars == pytest.approx(sorted(row["score"] for row in table.records() if row["interpolated"]))
