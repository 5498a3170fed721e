"""``loopscale matched``."""

from __future__ import annotations

import click

from loopscale.architecture import rung
from loopscale.cli.output import print_json
from loopscale.cli.params import BITS, BYTES, CONTEXT, COUNT, output_options, trust_options
from loopscale.cli.subjects import law_option
from loopscale.cli.verbs import verb
from loopscale.core.tables import Table
from loopscale.planning.compute import flops_of
from loopscale.planning.matching import matched
from loopscale.planning.screen import matched_screen
from loopscale.scaling import DEFAULT, PAPER, ScalingLaw


def case_study() -> tuple[str, str, float]:
    """Return the paper's case study: the looped design, the one without loops, and the training compute of both."""
    case = PAPER["case_study"]
    flops = flops_of(rung(case["reference"], case["experts"]), case["reference_tokens_trillions"] * 1e12)
    designs = [f"{case[name]}:{case['experts']}" for name in ("target", "reference")]
    return f"{designs[0]}:{case['recurrence']}", f"{designs[1]}:1", float(flops)


def within(flops: float, case: float) -> bool:
    """Tell whether a budget is the case study's, which the paper rounds up to 1.5e22."""
    return bool(0.99 * case <= flops <= PAPER["case_study"]["flops_1e22"] * 1.01e22)


@verb("matched")
@click.argument("first", required=False)
@click.argument("second", required=False)
@click.option("--flops", type=COUNT, help="Training compute of both, like 5e21.  [default: the case study's]")
@click.option("--memory", type=BYTES, help="Also compare in this memory, like 3GB.  [default: that of the smaller]")
@click.option("--bits", type=BITS, help="Also compare in equal memory, at these bits per weight.")
@click.option("--context", type=CONTEXT, help="Count the KV cache of this context in that memory; 8k is 8,192.")
@law_option
@trust_options
@output_options
def matched_command(
    first: str | None,
    second: str | None,
    flops: float | None,
    memory: float | None,
    bits: float | None,
    context: int | None,
    law: ScalingLaw,
    extrapolate: bool,
    allow_degenerate: bool,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Compare two designs on equal terms.

    FIRST and SECOND are written RUNG:EXPERTS:RECURRENCE; without them, the paper's case study is compared.
    Looped against not, or sparse against dense: at equal training FLOPs, then also at equal total parameters, at equal
    KV memory, and at all of them; and how much more compute the second needs to reach the loss of the first.

    \b
    loopscale matched
    loopscale matched 0.3B:8:4 0.6B:8:1 --flops 1e22
    loopscale matched 1.0B:8:2 2.4B:1:1 --flops 5e21 --memory 3GB --bits int4 --context 8k
    loopscale matched 1.0B:8:1 1.0B:1:1 --flops 5e21 --json
    """
    if (first is None) != (second is None) or (first is not None and flops is None):
        raise click.UsageError("give two designs and --flops, or neither for the paper's case study")
    case_first, case_second, case_flops = case_study()
    if first is None or second is None:
        first, second, flops = case_first, case_second, flops or case_flops
    assert flops is not None
    # The comparison that the paper printed is answered, however far from its sweep; the trust line says how far.
    known = law.name == DEFAULT and (first, second) == (case_first, case_second) and within(flops, case_flops)
    result = matched(
        first, second, flops, law, memory=memory, bits=bits, context=context, extrapolate=extrapolate or known,
        allow_degenerate=allow_degenerate,
    )  # fmt: skip
    if as_json:
        print_json({"kind": "matched", **result.to_dict()})
    elif as_csv:
        click.echo(Table.from_records(result.rows).csv(), nl=False)
    else:
        click.echo(matched_screen(result))
