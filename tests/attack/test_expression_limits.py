"""A law that is written as an expression is compiled quickly, or refused in a sentence."""

import random

import pytest

from loopscale.core.errors import InputError

pytest.importorskip("sympy")

from loopscale.scaling.expressions import Expression

ATOMS = ("N", "D", "E", "R", "U", "A", "B", "c", "alpha", "2", "0.5", "1000", "0", "1e14", "-3")


def written(source: random.Random, depth: int) -> str:
    """Return an expression of the grammar, up to ``depth`` levels deep."""
    kind = source.random()
    if depth == 0 or kind < 0.25:
        return source.choice(ATOMS)
    inner = written(source, depth - 1)
    if kind < 0.75:
        return f"({inner}{source.choice(('+', '-', '*', '/', '**'))}{written(source, depth - 1)})"
    return f"{source.choice(('exp', 'log', 'log10', 'sqrt', 'tanh', '-'))}({inner})"


def test_every_expression_of_the_grammar_is_a_law_or_refused():
    laws = 0
    for seed in range(150):
        source = random.Random(seed)
        try:
            laws += bool(Expression(f"c + A*{written(source, source.randint(1, 6))}").coefficients)
        except InputError:
            continue
    assert laws > 30


@pytest.mark.parametrize(
    "expression",
    ["c + exp(exp(exp(exp(exp(exp(A*N))))))", "c + N**(a**(b**(d**(e**N))))"],
    ids=["functions", "powers"],
)
def test_deep_nesting_is_refused(expression):
    with pytest.raises(InputError, match="nested deeper than 4 levels"):
        Expression(expression)


@pytest.mark.parametrize("operator", ["*", "/"])
def test_products_of_many_sums_are_not_multiplied_out(operator):
    law = Expression("c + " + operator.join(f"(a{k} + N)" for k in range(19)))  # 2**19 summands
    assert len(law.coefficients) == 20
