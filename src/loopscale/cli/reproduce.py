"""``loopscale reproduce``: the paper's numbers beside ours, each with how far they can be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import click
import numpy as np

from loopscale.architecture import RUNG_EXPERTS, RUNGS, ladder_space, rung
from loopscale.cli.output import console, print_json, print_table
from loopscale.cli.params import output_options
from loopscale.cli.verbs import verb
from loopscale.core.report import Report, check_report_path
from loopscale.core.tables import Table
from loopscale.planning import (
    Budget,
    evaluate,
    experts_map,
    flops_of,
    joint_optimum,
    plan,
    recurrence_map,
)
from loopscale.scaling import PAPER, published, with_uncertainty

EXACT, ROUNDED, SIMULATED, DIFFERS, MISSING = "exact", "within rounding", "simulated", "different", "not recomputable"
MEANINGS = {
    EXACT: "the same number",
    ROUNDED: "the same once rounded as the paper rounds",
    SIMULATED: "recomputed on a simulation of the paper's unpublished sweep; it can agree in size, not in digits",
    DIFFERS: "another number; the note says why",
    MISSING: "needs data or checkpoints that were not published",
}


@dataclass(frozen=True)
class Line:
    """One number of the paper and ours."""

    where: str
    what: str
    paper: float | str
    ours: float | str | None
    status: str
    note: str = ""


def reproduction() -> list[Line]:
    """Return every number of the paper that we recompute, or cannot, with ours."""
    sections = (_ladder, _setup, _coefficients, _intervals, _joint_optima, _case_study, _held_out, _findings,
                _downstream, _path_diversity)  # fmt: skip
    return [line for section in sections for line in section()]


def summary(lines: list[Line]) -> str:
    """Return the count of each status in a sentence."""
    counts = Counter(line.status for line in lines)
    parts = ", ".join(f"{counts[status]} {status}" for status in MEANINGS if counts[status])
    return f"{len(lines)} numbers of the paper: {parts}"


def _rounded(where: str, what: str, printed: float, ours: float, digits: int, note: str = "") -> Line:
    """Compare a number with one that the paper rounds to ``digits`` decimals."""
    if ours == printed:
        return Line(where, what, printed, ours, EXACT)
    same = round(ours, digits) == round(printed, digits)
    return Line(where, what, printed, float(f"{ours:.6g}"), ROUNDED if same else DIFFERS, "" if same else note)


def _ladder() -> Iterator[Line]:
    table = PAPER["ladder"]
    note = "within 0.0004 B of the rounding boundary: routers, which the table may count, push it over"
    for name, row in table["rungs"].items():
        model = rung(name)
        counts = {
            "width": model.width, "heads": model.prelude[0].layer.attention.heads, "layers": model.layers,
            "looped_layers": model.loop_block[0].count,
        }  # fmt: skip
        for field, ours in counts.items():
            yield _rounded(table["where"], f"{name} {field.replace('_', ' ')}", row[field], ours, 0)
        yield _rounded(table["where"], f"{name} N_loop (B)", row["loop"], model.loop / 1e9, 1, note)
        for E, printed in zip(table["experts"], row["total"], strict=True):
            sparse = rung(name, experts=E)
            total = (sparse.total + sparse.embedding) / 1e9
            yield _rounded(table["where"], f"{name} N_total at E={E} (B)", printed, total, 1, note)


def _setup() -> Iterator[Line]:
    space, sweep = PAPER["design_space"], PAPER["sweep"]
    count = float(np.prod(ladder_space().shape))
    yield _rounded(space["where"], "candidates of the design space", space["candidates"], count, 0)
    tokens = sweep["batch_sequences"] * sweep["context"] / 1e6
    yield _rounded(sweep["where"], "tokens per batch (millions)", sweep["batch_tokens_millions"], tokens, 2)


def _coefficients() -> Iterator[Line]:
    from loopscale.fitting import fit, simulate_sweep

    table, law = PAPER["coefficients"], with_uncertainty("looped-moe-2026")
    assert law.resamples is not None
    for k, (name, printed) in enumerate(table["values"].items()):
        low, middle, high = np.percentile(law.resamples[:, k], [5, 50, 95])
        note = f"median of 100 refits; 90% of them from {low:.4g} to {high:.4g}"
        yield Line(table["where"], f"coefficient {name}", printed, float(f"{middle:.5g}"), SIMULATED, note)
    sweep = simulate_sweep()
    for mapping, key in (("sparsity-conditional", "rmse"), ("two-exponents", "two_exponents_rmse")):
        rmse = fit(sweep, outer="joint-moe", mapping=mapping, resamples=0).law.rmse
        assert rmse is not None
        note = "refit of one simulated sweep; its noise is the printed RMSE"
        yield Line(table["where"], f"RMSE, {mapping} mapping", table[key], float(f"{rmse:.2g}"), SIMULATED, note)


def _intervals() -> Iterator[Line]:
    from loopscale.fitting import fit, simulate_sweep

    table = PAPER["intervals"]
    fitted = fit(simulate_sweep(), outer="joint-moe", mapping="sparsity-conditional", resamples=0)
    refits = fitted.resample(table["refits"], scheme="paper").law
    assert refits.resamples is not None
    for name, ends in table["values"].items():
        column = refits.resamples[:, refits.names.index(name)]
        for end, printed, ours in zip(("low", "high"), ends, np.percentile(column, [5, 95]), strict=True):
            note = "the paper's 90% subsets, on one simulated sweep"
            yield Line(
                table["where"], f"{name}, {end} end of the 90% interval", printed, float(f"{ours:.4f}"), SIMULATED, note
            )


def _joint_optima() -> Iterator[Line]:
    table = PAPER["joint_optima"]
    budget = Budget(flops=table["flops"], bits=table["bits"])
    memory = [row["memory"] for row in table["rows"]]
    names = {float(rung(name).active): name for name in RUNGS}
    optima = joint_optimum(with_uncertainty("looped-moe-2026"), memory, budget)
    for printed, ours in zip(table["rows"], optima.records(), strict=True):
        for axis, column in {"size": "rung", "experts": "experts", "recurrence": "recurrence"}.items():
            what, value = f"joint optimum at {printed['memory'] / 1e9:g} GB: {axis}", ours[column]
            yield Line(table["where"], what, printed[axis], value, EXACT if value == printed[axis] else DIFFERS)
            for end in ("low", "high"):
                note = f"90% of 100 simulated refits; within eps of the best under {ours['agreement']:.0%}"
                simulated = names[ours[f"active_{end}"]] if axis == "size" else ours[f"{axis}_{end}"]
                yield Line(table["where"], f"{what}, {end} end", printed[axis], simulated, SIMULATED, note)


def _case_study() -> Iterator[Line]:
    case, table = PAPER["case_study"], PAPER["downstream"]
    experts = case["experts"]
    flops = flops_of(rung(case["reference"], experts), case["reference_tokens_trillions"] * 1e12)
    found = plan(Budget(flops=flops), ladder_space([case["target"]], [experts]))
    yield _rounded(case["where"], "case study: R*", case["recurrence"], found.choice.recurrence, 0)
    yield _rounded(
        case["where"], "case study: tokens (T)", case["target_tokens_trillions"], found.choice.tokens / 1e12, 0
    )
    note = "6 N_act D without embeddings, at 6T tokens; the paper says approximately"
    yield _rounded(case["where"], "case study: compute (1e22 FLOPs)", case["flops_1e22"], flops / 1e22, 1, note)
    small, large = rung(case["target"], experts), rung(case["reference"], experts)
    for row in table["rows"]:
        looped = row["model"].startswith("A0.3B")
        cost = (small if looped else large).inference_flops_per_token(row["recurrence"])
        ratio = float(cost / large.inference_flops_per_token(1))
        yield _rounded(
            table["where"], f"{row['model']} R={row['recurrence']}: inference ratio", row["inference_ratio"], ratio, 1
        )


def _held_out() -> Iterator[Line]:
    from loopscale.fitting import simulate_sweep
    from loopscale.fitting.compare import compare

    sweeps: dict[str, dict[str, Any]] = {"held_out_moe": {}, "held_out_dense": {"experts": (1,)}}
    for key, design in sweeps.items():
        table, (outer, law) = PAPER[key], _truth(key)
        plain, longer = simulate_sweep(law, **design), simulate_sweep(law, recurrences=(1, 2, 3, 4, 6, 8, 16), **design)
        for part, printed in zip(table["slices"], table["rmse"], strict=True):
            data = longer if part == "R=16" else plain
            scores = compare(data, [part], outer=outer, mappings=table["mappings"], folds=0, count=10)
            for mapping, value in zip(table["mappings"], printed, strict=True):
                ours = next(score.rmse for score in scores.scores if score.mapping == mapping)
                what = f"held-out {part}, {'dense, ' if 'dense' in key else ''}{mapping}: RMSE"
                yield Line(table["where"], what, value, float(f"{ours:.4f}"), SIMULATED, "one simulated sweep")


def _truth(key: str) -> tuple[str, Any]:
    return ("joint-moe", published()) if key == "held_out_moe" else ("chinchilla", published().at_one_expert())


def _finding(what: str, holds: int, cases: int, note: str = "") -> Line:
    status = EXACT if holds == cases else DIFFERS
    return Line("Findings of Section experiments", what, "holds", f"{holds} of {cases} cases", status, note)


def _findings() -> Iterator[Line]:
    law, flops = published(), np.geomspace(1e20, 1e24, 81)
    memory = np.geomspace(0.17e9, 60e9, 300)
    limits = [
        [float(law.largest_multiplier(rung(name, experts=E).points(3e11, 2))) for E in RUNG_EXPERTS] for name in RUNGS
    ]
    rises = np.diff(limits, axis=1) > 0
    yield _finding("sparsity raises the bound of looping's gain", int(rises.sum()), rises.size)
    best = np.array(recurrence_map(law, flops, ladder_space()).columns["best_recurrence"]).reshape(len(flops), 5, 6)
    steps = np.diff(best, axis=0) >= 0
    yield _finding("more compute never lowers R* at a fixed size and E", int(steps.sum()), steps.size)
    sparser = best[..., 3] >= best[..., 0]
    note = "fails at small compute, where a dense model already wants one pass more than E = 8"
    yield _finding("greater sparsity never lowers R* (E = 8 against 1)", int(sparser.sum()), sparser.size, note)
    grid = evaluate(law, ladder_space(), Budget(flops=1.0), flops=flops)
    frontier = np.diff(grid.loss_ZFSKP[0].min(axis=(1, 3)), axis=1) < 0
    yield _finding("more experts lower the IsoFLOP frontier", int(frontier.sum()), frontier.size)
    yield from _more_findings(memory)


def _more_findings(memory: Any) -> Iterator[Line]:
    law, budget = published(), Budget(flops=5e21, bits=4)
    pair = evaluate(law, ladder_space(experts=(1, 8), recurrences=(1, 2)), Budget(flops=1.0),
                    flops=np.array([5e20, 1e21])).loss_ZFSKP[0]  # fmt: skip
    beats = pair[1, :, :, 1] < pair[0, :, :, 0]
    yield _finding("R = 2 at 1e21 FLOPs beats R = 1 at 5e20 (E = 1 and 8)", int(beats.sum()), beats.size)
    kept, above = [], []
    for name in RUNGS:
        table = experts_map(law, memory, budget, ladder_space([name]))
        E = np.nan_to_num(np.array(table.columns["best_experts"], float)).reshape(len(memory), -1)
        kept.append(np.diff(E, axis=0) >= 0)
        above.append(E[:, 3] > E[:, 0])
    steps, larger = np.array(kept), np.array(above)
    yield _finding("more memory never lowers E* of a fixed size", int(steps.sum()), steps.size)
    note = "E* is the same at R = 4 and R = 1 at every fixed size and memory"
    yield _finding("higher recurrence raises E* of a fixed size", int(larger.sum()), larger.size, note)
    free = experts_map(law, memory, budget, ladder_space(recurrences=(1, 4)))
    E = np.array(free.columns["best_experts"], float).reshape(len(memory), 2)
    usable = np.isfinite(E).all(axis=1)
    higher, equal = E[usable, 1] > E[usable, 0], E[usable, 1] == E[usable, 0]
    note = f"with the size free E* is higher at R = 4 in {higher.mean():.0%} of budgets and equal in {equal.mean():.0%}"
    yield _finding("higher recurrence raises E* with the size free", int(higher.sum()), len(higher), note)
    joint = np.array([R for R in joint_optimum(law, memory, budget).columns["recurrence"] if R])
    moves = np.diff(joint)
    note = f"as memory grows the joint R* rises {int((moves > 0).sum())} times and falls {int((moves < 0).sum())} times"
    falls, changes = int((moves < 0).sum()), int((moves != 0).sum())
    yield _finding("tight memory favours recurrence: each change of R* with memory is a fall", falls, changes, note)


def _downstream() -> Iterator[Line]:
    table = PAPER["downstream"]
    first = next(
        row for row in table["rows"] if row["recurrence"] == 1 and row["gain"] is None and "Loop" in row["model"]
    )
    for row in table["rows"]:
        name = f"{row['model']} R={row['recurrence']}"
        mean = float(np.mean(row["scores"]))
        # Scores and mean are each rounded to 0.1, so that the two may differ by up to 0.1.
        status = EXACT if mean == row["overall"] else ROUNDED if abs(mean - row["overall"]) <= 0.1 else DIFFERS
        note = "the mean of the printed scores, which are rounded themselves"
        yield Line(table["where"], f"{name}: Overall", row["overall"], float(f"{mean:.6g}"), status, note)
        if row["gain"] is not None:
            gain = round(row["overall"] - first["overall"], 4)
            yield _rounded(table["where"], f"{name}: gain over R = 1", row["gain"], gain, 1)
    why = "needs the trained models of the case study (3T and 6T tokens)"
    for row in table["rows"]:
        for task, score in zip(table["tasks"], row["scores"], strict=True):
            yield Line(table["where"], f"{row['model']} R={row['recurrence']}: {task}", score, None, MISSING, why)


def _path_diversity() -> Iterator[Line]:
    table = PAPER["path_diversity"]
    for E, means in zip(table["experts"], table["mean"], strict=True):
        for R, mean in zip(table["recurrences"], means, strict=True):
            what = f"Psi at E={E}, R={R}"
            if E == 1 or R == 1:
                yield Line(table["where"], what, mean, 1.0, EXACT, "by definition: one pass, or one expert")
            else:
                yield Line(table["where"], what, mean, None, MISSING, "needs the trained checkpoints and prompts")


COLUMNS = ("number", "paper", "ours", "status")


@verb("reproduce")
@click.option("--status", type=click.Choice(list(MEANINGS)), help="Show only the numbers of this status.")
@click.option("--report", type=click.Path(), help="Also save a page with every number, as .html or .md.")
@output_options
def reproduce_command(status: str | None, report: str | None, as_json: bool, as_csv: bool) -> None:
    """Recompute the paper's numbers, beside the printed ones.

    \b
    loopscale reproduce
    loopscale reproduce --status different
    loopscale reproduce --report reproduction.html
    """
    if report is not None:
        check_report_path(report)
    lines = reproduction()
    shown = [line for line in lines if status in (None, line.status)]
    if report is not None:
        _report(lines).save(report)
    if as_json:
        print_json({"kind": "reproduction", "summary": summary(lines), "lines": [asdict(line) for line in shown]})
    elif as_csv:
        click.echo(Table.from_records([asdict(line) for line in shown]).csv(), nl=False)
    else:
        for where in dict.fromkeys(line.where for line in shown):
            rows = [_row(line) for line in shown if line.where == where]
            print_table(where, COLUMNS, rows, left=("number", "status"))
        for line in shown:
            if line.status == DIFFERS:
                console().print(f"{line.what}: {line.note}", highlight=False)
        console().print(summary(lines), highlight=False)


def _row(line: Line) -> tuple[str, ...]:
    return (line.what, _text(line.paper), "" if line.ours is None else _text(line.ours), line.status)


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def _report(lines: list[Line]) -> Report:
    report = Report("The paper's numbers, recomputed")
    report.question(f"Which numbers of the paper follow from its law and its tables? ({PAPER['source']})")
    report.answer(f"{summary(lines)}.")
    report.heading("What each status means")
    report.table(("status", "meaning"), list(MEANINGS.items()))
    for where in dict.fromkeys(line.where for line in lines):
        report.heading(where)
        report.table((*COLUMNS, "note"), [(*_row(line), line.note) for line in lines if line.where == where])
    report.provenance(law="looped-moe-2026")
    return report
