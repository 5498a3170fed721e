"""Reports: the question, the answer, its confidence, figures, tables and provenance."""

from loopscale.figures.reports.evaluation import evaluation_report
from loopscale.figures.reports.fit import fit_report
from loopscale.figures.reports.plan import plan_report
from loopscale.figures.reports.sweep import sweep_report

__all__ = ["evaluation_report", "fit_report", "plan_report", "sweep_report"]
