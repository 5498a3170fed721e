"""Reports show every text literally, follow the reader's theme, and need nothing from elsewhere."""

import re

import pytest

from loopscale.core.report import Report
from loopscale.figures import new_figure

HOSTILE = '<script>alert("x")</script> [link](http://evil.example) `code` *bold*'


@pytest.fixture
def report() -> Report:
    made = Report(HOSTILE)
    made.question(HOSTILE)
    made.answer(HOSTILE)
    made.warning(HOSTILE)
    made.preformatted(HOSTILE)
    made.table((HOSTILE, "b"), [(HOSTILE, HOSTILE)])
    figures = []
    for _ in range(2):
        figure, (axes,) = new_figure()
        axes.plot([1, 2], [1, 2], color="#000000", marker="o", clip_on=True)
        figures.append(figure)
    made.figure(figures, HOSTILE)
    return made


def test_html_in_a_text_takes_no_effect_in_either_format(report):
    page, (text, _) = report.html(), report.markdown()
    for written in (page, text):
        assert "<script" not in written
        assert "&lt;script&gt;" in written
    outside = re.sub(r"<pre>.*?</pre>", "", text, flags=re.DOTALL)  # where Markdown reads no links
    assert "\\]" + "(http://evil" in outside
    assert re.search(r"[^\\]\]\(http", outside) is None


def test_drawings_are_inline_svg_in_the_colours_of_the_page(report):
    page = report.html()
    assert page.count("<svg") == 2
    assert "currentColor" in page
    assert "prefers-color-scheme:dark" in page
    drawings = page[page.index("<svg") :]
    assert "#000000" not in drawings
    assert "http" not in drawings.replace("http://evil.example", "")


def test_ids_of_two_drawings_do_not_collide_and_are_all_found(report):
    page = report.html()
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', page)) != set()
    for first, second in re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', page):
        assert (first or second) in ids


def test_markdown_has_a_picture_for_each_drawing(report, tmp_path):
    report.save(tmp_path / "my report.md")
    assert {file.name for file in tmp_path.iterdir()} == {"my report.md", "my report-1.png", "my report-2.png"}
    assert "](my%20report-2.png)" in (tmp_path / "my report.md").read_text()
