"""A law in LaTeX: its equation with numbers, and a table of its coefficients for a paper."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from loopscale.scaling.law import ScalingLaw

_GREEK = ("alpha", "beta", "gamma", "delta", "omega", "zeta", "kappa", "theta", "phi", "lambda", "mu", "eta", "nu")
_NUMBER = r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?"
_WORDS = {"act": r"\mathrm{act}", "loop": r"\mathrm{loop}", "start": r"\mathrm{start}", "max": r"\max"}


def equation(text: str) -> str:
    """Return an equation as loopscale prints it, ``1.7 + 0.41 / N^0.35``, in LaTeX; without the dollar signs."""
    text = text.replace("**", "^").replace("Ê", r"\hat{E}").replace("log10 ", r"\log_{10} ")
    text = re.sub(rf"({_NUMBER}) / ([ND])\^({_NUMBER})", r"\\frac{\1}{\2^{\3}}", text)
    text = re.sub(rf"\(({_NUMBER}) / ([ND])\)", r"\\left(\\frac{\1}{\2}\\right)", text)
    text = re.sub(r"\^\(([^()]*)\)", r"^{\1}", text)
    text = re.sub(rf"\^({_NUMBER})", r"^{\1}", text)
    text = re.sub(r"(\d(?:\.\d+)?)e\+?(-?)0*(\d+)", r"\1 \\times 10^{\2\3}", text)
    text = re.sub(r"\bln ", r"\\ln ", text)
    return re.sub(r"\b([NE])_(act|loop|start|max)\b", lambda m: f"{m[1]}_{{{_WORDS[m[2]]}}}", text)


def symbol(name: str) -> str:
    """Return the name of a coefficient in LaTeX: ``kappa1`` becomes kappa with the index 1."""
    match = re.fullmatch(r"([A-Za-z]+?)(?:_(\w+)|(\d+))?", name)
    if match is None:
        return rf"\mathrm{{{name}}}"
    letter, index = match[1], match[2] or match[3]
    letter = rf"\{letter}" if letter in _GREEK else letter if len(letter) == 1 else rf"\mathrm{{{letter}}}"
    return letter if index is None else f"{letter}_{{{_WORDS.get(index, index)}}}"


def law_latex(law: ScalingLaw) -> str:
    """Return the law for a paper: its equation, and a table of its coefficients with 90% intervals if it has any.

    N and D are in the law's own units; exponents are positive where papers print them so.
    """
    scale = {1e9: "billions", 1e6: "millions", 1.0: "raw counts"}.get(law.units.parameters, f"{law.units.parameters:g}")
    lines = [
        f"% {law.name}: {law.form}; N and D in {scale}, {law.counts.value.replace('-', ' ')}",
        r"\begin{align}",
        "  " + equation(law.outer.equation(law.coefficients)).replace("L = ", "L &= ", 1),
    ]
    if law.mapping.loops:
        lines[-1] += r" \\"
        lines.append(r"  N &= N_{\mathrm{act}} + g(R)\, N_{\mathrm{loop}}")
        lines[-1] += rf", \quad g(R) = {law.mapping.formula}" if law.mapping.formula else ""
    lines += [r"\end{align}", r"\begin{tabular}{lrl}", r"  \toprule", r"  coefficient & estimate & 90\% interval \\",
              r"  \midrule"]  # fmt: skip
    ends_P = np.empty((0, 2)) if law.resamples is None else np.percentile(law.resamples, [5, 95], axis=0).T
    spans = dict(zip(law.names, ends_P.tolist(), strict=False))
    for term in law.terms:
        sign = term.published_sign
        ends = sorted(sign * float(end) for end in spans.get(term.name, ()))
        span = equation(f"$[{ends[0]:.3g}, {ends[1]:.3g}]$") if ends else ""
        value = equation(f"{sign * law.coefficients[term.name]:.4g}")
        lines.append(rf"  ${symbol(term.name)}$ & ${value}$ & {span} \\")
    return "\n".join([*lines, r"  \bottomrule", r"\end{tabular}"])
