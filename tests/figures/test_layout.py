"""No label of a figure overlaps another, leaves its axes or hides a point, at one and at two columns of a paper."""

from itertools import combinations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from loopscale.architecture import rung
from loopscale.figures.drawing import PAPER_FIGURES, paper_figure
from loopscale.figures.gallery import GALLERY
from loopscale.figures.results import RESULTS, checked_table, paper_psi, paper_results
from loopscale.figures.sources import Sources
from loopscale.figures.style import RECURRENCE
from loopscale.scaling import published

LAW = published()
WIDTHS = {3.25: 1, 6.75: 2}
"""Inches of one and of two columns of a paper, and the panels side by side."""
OTHERS = ("loss-compute", "residuals", "observed", "intervals", "scores-by-recurrence", "psi")
"""Pictures that are not among the paper's figures."""


def sweep_results():
    """Return results of 135 models shaped like the paper's sweep, made up from the law: only their layout is tested."""
    noise, rows = np.random.default_rng(0), []
    designs = [(E, 1) for E in (1, 2, 4, 8, 16)] + [(8, R) for R in (2, 3, 4, 6)]
    for size in ("0.3B", "0.6B", "1.0B"):
        for E, R in designs:
            model = rung(size, E)
            for D in (1e11, 2e11, 3e11, 4e11, 5e11):
                loss = float(LAW(model.points(D, R)))
                for order, task in enumerate(("BBH", "GSM8K", "ARC-C", "PIQA", "MMLU")):
                    score = 100 / (1 + np.exp((loss - 2.2 + 0.05 * order) / 0.25)) + noise.normal(0, 0.6)
                    rows.append({
                        "model": f"{size}-E{E}-R{R}-D{D:g}", "recurrence": R, "task": task, "metric": "acc",
                        "value": score, "stderr": 0.6, "training_flops": 6 * model.unrolled(R) * D, "size": size,
                        "run": f"{size}-E{E}-R{R}", "experts": E, "trained_recurrence": R, "tokens": D,
                        "validation_loss": loss,
                    })  # fmt: skip
    return checked_table({name: [row[name] for row in rows] for name in rows[0]}, RESULTS, "made up")


@pytest.fixture(scope="module")
def sources():
    found = Sources(LAW, results=paper_results(), psi=paper_psi())
    found.prepare()
    return found


def drawn(picture, width):
    figure = picture.figure(WIDTHS[width] if len(picture.panels) > 1 else 1)
    figure.set_size_inches(width, figure.get_size_inches()[1])
    return rendered(figure)


def rendered(figure):
    """Return the figure after it was laid out as for a file."""
    FigureCanvasAgg(figure).draw()
    return figure


def boxes(figure):
    """Return every visible text with its box in pixels and the axes it belongs to."""
    from matplotlib.text import Text

    found = []
    for axes in figure.axes:
        inside = {id(text) for text in axes.texts}
        for text in axes.findobj(Text):
            box = text.get_window_extent()
            shown = text.get_visible() and text.get_text().strip() and box.width > 0
            ticks = (*axes.get_xticklabels(which="both"), *axes.get_yticklabels(which="both"))
            off = text in ticks and not _on_axis(axes, text)
            if shown and not off:
                found.append((text, box, axes if id(text) in inside else None))
    return found


def _on_axis(axes, label):
    (x, y), (left, right), (low, high) = label.get_position(), sorted(axes.get_xlim()), sorted(axes.get_ylim())
    return left <= x <= right if label in axes.get_xticklabels(which="both") else low <= y <= high


def markers(axes):
    """Return where the markers of the axes stand, in pixels."""
    from matplotlib.collections import PathCollection

    spots = [
        each.get_offset_transform().transform(each.get_offsets())
        for each in axes.collections
        if isinstance(each, PathCollection)
    ]
    spots += [
        each.get_transform().transform(each.get_xydata())
        for each in axes.lines
        if each.get_marker() not in ("None", "", None) and len(each.get_xydata())
    ]
    return np.concatenate(spots) if spots else np.empty((0, 2))


def faults(figure):
    """Return what is wrong with the layout, in words."""
    frame, listed, found = figure.bbox, boxes(figure), []
    for text, box, axes in listed:
        name = text.get_text()
        if box.x0 < frame.x0 - 1 or box.x1 > frame.x1 + 1 or box.y0 < frame.y0 - 1 or box.y1 > frame.y1 + 1:
            found.append(f"{name!r} leaves the figure")
        if axes is not None:
            room = axes.get_window_extent()
            if box.x0 < room.x0 - 1 or box.x1 > room.x1 + 1 or box.y0 < room.y0 - 1 or box.y1 > room.y1 + 1:
                found.append(f"{name!r} leaves its axes")
            found += [f"{name!r} hides a point" for x, y in markers(axes) if box.contains(x, y)]
    for (one, first, _), (other, second, _) in combinations(listed, 2):
        across = min(first.x1, second.x1) - max(first.x0, second.x0)
        down = min(first.y1, second.y1) - max(first.y0, second.y0)
        if across > 1 and down > 1:
            found.append(f"{one.get_text()!r} overlaps {other.get_text()!r}")
    for axes in figure.axes:
        key = axes.get_legend()
        if key is not None and key.get_window_extent().overlaps(axes.get_window_extent()):
            found.append(f"the legend of {axes.get_title(loc='left')!r} covers its axes")
        if axes.get_xlabel().startswith(RECURRENCE) and any(tick % 1 for tick in axes.get_xticks()):
            found.append(f"{axes.get_title(loc='left')!r} marks fractions of a pass")
    return found


@pytest.mark.parametrize("name", [*PAPER_FIGURES, *OTHERS])
def test_no_label_overlaps_another_leaves_its_axes_or_hides_a_point(sources, name):
    picture = paper_figure(name, sources) if name in PAPER_FIGURES else GALLERY[name](sources)
    assert {width: faults(drawn(picture, width)) for width in WIDTHS} == {width: [] for width in WIDTHS}


def test_the_scores_of_135_models_stay_readable():
    picture = paper_figure("figure-7", Sources(LAW, results=sweep_results()))
    assert [panel.name for panel in picture.panels] == [
        "a-experts-overall", "b-experts-reasoning", "c-recurrence-overall", "d-recurrence-reasoning",
    ]  # fmt: skip
    for width in WIDTHS:
        figure = drawn(picture, width)
        assert faults(figure) == []
        for axes in figure.axes:
            box = axes.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
            assert box.width > 2.2
            assert box.height > 1.2


def test_the_check_itself_finds_labels_that_overlap_or_leave_their_axes_or_hide_a_point():
    from loopscale.figures.style import new_figure

    figure, (axes,) = new_figure()
    axes.scatter([0.5], [0.5])
    axes.text(0.5, 0.5, "over a point", ha="center", va="center")
    axes.text(0.52, 0.5, "twice", ha="center", va="center")
    axes.text(0.95, 0.9, "far too long for what is left", ha="left")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    rendered(figure)
    told = " ".join(faults(figure))
    for word in ("hides a point", "overlaps", "leaves its axes"):
        assert word in told
