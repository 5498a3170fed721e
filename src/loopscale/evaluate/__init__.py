"""Evaluate checkpoints at every recurrence: lm-eval's tasks, validation losses, early exit, and the tables of them.

What needs torch or lm-eval (``runner``, ``losses``, ``lm``) is imported where it is used.
"""

from loopscale.evaluate.curves import AccuracyCurve, Saturation, fit_accuracy, fit_saturation
from loopscale.evaluate.results import printed, tidy, wide
from loopscale.evaluate.rows import PublishedTable, Row, case_study, make_rows, published_rows
from loopscale.evaluate.store import EvaluatedModel, Key, Result, ResultStore, Score, kept_models, read_checkpoint
from loopscale.evaluate.suites import Benchmark, Suite, builtin_suites, load_suite

__all__ = [
    "AccuracyCurve",
    "Benchmark",
    "EvaluatedModel",
    "Key",
    "PublishedTable",
    "Result",
    "ResultStore",
    "Row",
    "Saturation",
    "Score",
    "Suite",
    "builtin_suites",
    "case_study",
    "fit_accuracy",
    "fit_saturation",
    "kept_models",
    "load_suite",
    "make_rows",
    "printed",
    "published_rows",
    "read_checkpoint",
    "tidy",
    "wide",
]
