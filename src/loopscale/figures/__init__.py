"""Every plot, drawn from the tidy tables that the other rooms return."""

from loopscale.figures.planning import draw_isoflop_over_recurrence, draw_joint_optimum
from loopscale.figures.style import new_figure, save

__all__ = ["draw_isoflop_over_recurrence", "draw_joint_optimum", "new_figure", "save"]
