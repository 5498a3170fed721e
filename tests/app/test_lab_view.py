"""The lab's models run in the page as they do in PyTorch."""

import subprocess
import sys

import numpy as np
import pytest
from browser import open_page, settled
from engine import run_node

from loopscale.app.lab_data import MODELS, lab_data, model_data
from loopscale.app.page import export_page

WORDS = [[0, 3, 5, 1, 2, 4, 4, 0, 1, 5, 3, 2], [5, 4, 3, 2, 1, 0], [1]]


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_experts_after_every_pass_are_those_of_pytorch(name):
    torch = pytest.importorskip("torch")
    from loopscale.lab.shipped import shipped_model

    model = shipped_model(name).eval()
    chosen: list[list[set[int]]] = []
    if model.config.num_experts > 1:
        router = model.model.loop[0].mlp.router
        router.register_forward_hook(lambda _, __, out: chosen.append([set(ids) for ids in out[2].tolist()]))
    found = run_node(
        "const model = readModel(tasks.data); return tasks.words.map((ids) => runLooped(model, ids, 12));",
        {"data": model_data(name), "words": WORDS},
        "looped.js",
    )
    for ids, passes in zip(WORDS, found, strict=True):
        chosen.clear()
        with torch.no_grad():
            out = model(torch.tensor([ids]), recurrence=12, output_passes=True, use_cache=False)
        for logits, mine in zip(out.pass_logits, passes, strict=True):
            np.testing.assert_allclose(np.array(mine["logits"]), logits[0].double().numpy(), atol=1e-4)
        pairs = [mine["experts"] and [set(pair) for pair in mine["experts"]] for mine in passes]
        assert pairs == (chosen or [None] * 12)


def test_words_and_products_are_those_of_the_task():
    pytest.importorskip("torch")
    from loopscale.train.data.puzzles import products, task_called

    data = lab_data()
    assert data["words"] == list(task_called("s3", 12).words)
    assert data["products"] == products(3).tolist()


def test_the_model_with_experts_shows_which_of_them_each_pass_used(browser, tmp_path):
    export_page(tmp_path)
    page = open_page(browser, f"file://{tmp_path}/index.html#view=lab")
    page.wait_for_selector("#lab-grid td")
    assert page.is_hidden("#lab-experts")
    page.click("#lab-model button[data-value=experts]")
    page.wait_for_selector("#lab-used td")
    numbers = "rows => rows.map((row) => [...row.cells].slice(1).map((cell) => Number(cell.textContent)))"
    rows = page.eval_on_selector_all("#lab-used tbody tr", numbers)
    length = page.locator("#lab-grid thead th").count() - 1
    assert all(sum(row) == 2 * length for row in rows)
    assert len({tuple(row) for row in rows}) > 1  # passes differ
    assert page.locator("#lab-grid tr:last-child td.right").count() == length
    known = page.eval_on_selector_all("#lab-view [data-term]", "words => words.map((word) => word.dataset.term)")
    assert {"permutation", "passes", "early exit", "experts", "seed", "chance"} <= set(known)
    page.hover("#lab-view [data-term='early exit']")
    assert "no longer changes" in page.inner_text("#term-note")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    assert page.errors == []
    page.context.close()


def test_more_passes_turn_more_positions_right_in_the_page(browser, tmp_path):
    export_page(tmp_path)
    page = open_page(browser, f"file://{tmp_path}/index.html#view=lab&loops=1")
    page.wait_for_selector("#lab-passes")
    settled(page)
    page.wait_for_selector("#lab-grid td")
    few = page.locator("#lab-grid tr:last-child td.right").count()
    page.fill("#lab-passes", "12")
    page.dispatch_event("#lab-passes", "input")
    page.wait_for_function("() => document.querySelectorAll('#lab-grid tbody tr').length === 12")
    assert page.locator("#lab-grid tr:last-child td.right").count() > few
    page.fill("#lab-word", "123 999")
    page.press("#lab-word", "Enter")
    assert "999" in page.inner_text("#lab-problem")
    assert page.locator("#lab-grid tbody tr").count() == 12  # the last word stays
    assert page.locator("#two-axes svg").count() == 2
    assert page.errors == []
    page.context.close()


def test_building_the_page_does_not_import_torch():
    code = "import sys; from loopscale.app.page import page_files; page_files(True); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.strip() == "False"
