"""``loopscale reproduce``: the paper's numbers beside ours, each with the criterion that gives its status."""

from __future__ import annotations

from dataclasses import asdict

import click

from loopscale.cli.output import print_json, print_table, say
from loopscale.cli.params import output_options
from loopscale.cli.reproduction import MEANINGS, Line, PublicComparison, public_comparisons, reproduction, summary
from loopscale.cli.reproduction.line import DISAGREES
from loopscale.cli.reproduction.public import MAPPINGS
from loopscale.cli.verbs import verb
from loopscale.core.report import Report, check_report_path
from loopscale.core.tables import Table
from loopscale.scaling import PAPER

COLUMNS = ("number", "paper", "ours", "status")


@verb("reproduce")
@click.option("--status", type=click.Choice(list(MEANINGS)), help="List only the lines of this status.")
@click.option("--report", type=click.Path(), help="Also save a page with every number, as .html or .md.")
@click.option("--verbose", is_flag=True, help="List every line.")
@output_options
def reproduce_command(status: str | None, report: str | None, verbose: bool, as_json: bool, as_csv: bool) -> None:
    """Recompute the paper's numbers and check its claims.

    Numbers of the unpublished sweep are judged by simulated sweeps: a printed number agrees when 90% of them include
    it. Where the data of public looped runs are here, the paper's held-out comparison is repeated on them.

    \b
    loopscale reproduce
    loopscale reproduce --status disagrees
    loopscale reproduce --report reproduction.html
    """
    if report is not None:
        check_report_path(report)
    lines = reproduction()
    public, missing = public_comparisons()
    if report is not None:
        _report(lines, public, missing).save(report)
    listed = [line for line in lines if status in (None, line.status)]
    if as_json:
        content = {"kind": "reproduction", "summary": summary(lines), "lines": [line.to_dict() for line in listed]}
        compared = [{**asdict(comparison), "lowest": comparison.lowest} for comparison in public]
        print_json({**content, "public": compared, "left_out": missing})
    elif as_csv:
        click.echo(Table.from_records([line.to_dict() for line in listed]).csv(), nl=False)
    elif status is not None or verbose:
        for where in dict.fromkeys(line.where for line in listed):
            rows = [_row(line) for line in listed if line.where == where]
            print_table(where, COLUMNS, rows, left=("number", "status"))
        for line in listed:
            if line.status == DISAGREES:
                say(f"{line.what}: {line.note}")
        say(summary(lines))
    else:
        _screen(lines, public, missing)


def _screen(lines: list[Line], public: list[PublicComparison], missing: list[str]) -> None:
    """Print the answer, the count of each status, and the public comparison."""
    say(f"{summary(lines)}.")
    counts = [(word, str(sum(line.status == word for line in lines)), meaning) for word, meaning in MEANINGS.items()]
    print_table("", ("status", "lines", "meaning"), counts, left=("status", "meaning"))
    if public:
        rows = [(one.sweep, one.held_out, *_errors(one)) for one in public]
        print_table("The held-out comparison on public looped runs (RMSE, nats)",
                    ("sweep", "held out", *MAPPINGS), rows, left=("sweep", "held out"))  # fmt: skip
    for sentence in missing:
        say(sentence)
    say("next: loopscale reproduce --status disagrees; all lines with --verbose or --report")


def _errors(comparison: PublicComparison) -> tuple[str, ...]:
    return tuple(f"{getattr(comparison, name):.4f}" for name in MAPPINGS)


def _row(line: Line) -> tuple[str, ...]:
    return (line.what, _text(line.paper), "" if line.ours is None else _text(line.ours), line.status)


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def _report(lines: list[Line], public: list[PublicComparison], missing: list[str]) -> Report:
    report = Report("The paper's numbers, recomputed")
    report.question(f"Which numbers of the paper follow from its law and its tables? ({PAPER['source']})")
    report.answer(f"{summary(lines)}.")
    report.heading("What each status means")
    report.table(("status", "meaning"), list(MEANINGS.items()))
    for where in dict.fromkeys(line.where for line in lines):
        report.heading(where)
        rows = [(*_row(line), line.criterion, line.note) for line in lines if line.where == where]
        report.table((*COLUMNS, "criterion", "note"), rows)
    report.heading("The held-out comparison on public looped runs")
    report.text("The paper's sweep is not public. These are the same mappings on real runs of dense looped models.")
    if public:
        rows = [(one.sweep, one.held_out, str(one.rows), *_errors(one), one.lowest) for one in public]
        report.table(("sweep", "held out", "rows", *MAPPINGS, "lowest"), rows)
    for sentence in missing:
        report.text(sentence)
    report.provenance(law="looped-moe-2026")
    return report
