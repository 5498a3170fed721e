"""Fits without resampling: most tests look at the estimate alone."""

from functools import partial

from loopscale.fitting import fit as resampled_fit

fit = partial(resampled_fit, resamples=0)
