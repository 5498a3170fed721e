"""Every plot, drawn from the tidy tables that the other packages return.

Each ``draw_*`` takes a table and, if given, the axes to draw on, and returns the axes. ``GALLERY`` holds the
paper's figures by name.
"""

from loopscale.figures.capacity import (
    asymptote,
    draw_asymptote,
    draw_gain_by_mapping,
    draw_gain_by_sparsity,
    draw_loss_over_recurrence,
    draw_multiplier,
    fit_mappings,
    gain_by_mapping,
    gain_by_sparsity,
    loss_over_recurrence,
    multiplier_by_sparsity,
)
from loopscale.figures.fitting import draw_intervals, draw_observed, draw_residuals, intervals, residuals
from loopscale.figures.gallery import GALLERY
from loopscale.figures.optima import (
    draw_best_experts,
    draw_best_loss,
    draw_best_recurrence,
    draw_experts_map,
    draw_isoflop_over_recurrence,
    draw_isoflop_over_size,
    draw_joint_optimum,
    draw_recurrence_map,
)
from loopscale.figures.outcomes import draw_psi, draw_test_time, draw_training
from loopscale.figures.pictures import Panel, Picture
from loopscale.figures.results import METRICS, PSI, RESULTS, TEST_TIME, read_table
from loopscale.figures.scores import draw_downstream, draw_scores_by_recurrence, mean_scores
from loopscale.figures.sources import Sources
from loopscale.figures.style import new_figure, save

__all__ = [
    "GALLERY",
    "METRICS",
    "PSI",
    "RESULTS",
    "TEST_TIME",
    "Panel",
    "Picture",
    "Sources",
    "asymptote",
    "draw_asymptote",
    "draw_best_experts",
    "draw_best_loss",
    "draw_best_recurrence",
    "draw_downstream",
    "draw_experts_map",
    "draw_gain_by_mapping",
    "draw_gain_by_sparsity",
    "draw_intervals",
    "draw_isoflop_over_recurrence",
    "draw_isoflop_over_size",
    "draw_joint_optimum",
    "draw_loss_over_recurrence",
    "draw_multiplier",
    "draw_observed",
    "draw_psi",
    "draw_recurrence_map",
    "draw_residuals",
    "draw_scores_by_recurrence",
    "draw_test_time",
    "draw_training",
    "fit_mappings",
    "gain_by_mapping",
    "gain_by_sparsity",
    "intervals",
    "loss_over_recurrence",
    "mean_scores",
    "multiplier_by_sparsity",
    "new_figure",
    "read_table",
    "residuals",
    "save",
]
