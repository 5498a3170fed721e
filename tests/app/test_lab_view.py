"""The lab's model runs in the page as it does in PyTorch."""

import subprocess
import sys

import numpy as np
import pytest
from browser import open_page, settled
from engine import run_node

from loopscale.app.lab_data import lab_data
from loopscale.app.page import export_page

WORDS = [[0, 3, 5, 1, 2, 4, 4, 0, 1, 5, 3, 2], [5, 4, 3, 2, 1, 0], [1]]


def test_logits_after_every_pass_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    from loopscale.lab.shipped import shipped_model
    from loopscale.train.data.puzzles import products, task_called

    data = lab_data()
    assert data["words"] == list(task_called("s3", 12).words)
    assert data["products"] == products(3).tolist()

    model = shipped_model().eval()
    found = run_node(
        "const model = readModel(tasks.data); return tasks.words.map((ids) => runLooped(model, ids, 12));",
        {"data": data, "words": WORDS},
        "looped.js",
    )
    for ids, passes in zip(WORDS, found, strict=True):
        with torch.no_grad():
            out = model(torch.tensor([ids]), recurrence=12, output_passes=True, use_cache=False)
        for logits, mine in zip(out.pass_logits, passes, strict=True):
            np.testing.assert_allclose(np.array(mine), logits[0].double().numpy(), atol=1e-4)


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
