"""How often warnings are wrong: clean simulated sweeps that warn, and bent ones that do not.

Dense sweeps of several sizes are drawn from Chinchilla's law with normal noise on ln loss. A bent sweep has its ln loss
raised by 2% at both ends of ln N, of ln D or of ln C.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import product

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the matrices are small: threads only cost

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.fitting import Observations, fit
from loopscale.scaling import Counting, Points, published

NOISE = 0.003
BENT_NOISES = (0.002, 0.003)
BEND = 0.02
TRIALS = range(300, 500)
"""Seeds. The shares of the trends were chosen on seeds 0 to 99, the levels after seeing seeds 100 to 299."""
RUNS = (6, 8, 12, 24, 60)
BENT_RUNS = 60


def design(runs: int, random: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Return sizes and tokens of a sweep, spread at random over two decades of N and 5 to 200 tokens per parameter."""
    N = np.exp(random.uniform(np.log(3e7), np.log(3e9), runs))
    return N, N * np.exp(random.uniform(np.log(5), np.log(200), runs))


def simulated(runs: int, seed: int, bend: str | None = None, noise: float = NOISE) -> Observations:
    """Return a dense sweep, bent along N, D or C where asked for."""
    random = np.random.default_rng([seed, runs])
    N, D = design(runs, random)
    points = Points(N, D, np.ones(runs), np.ones(runs))
    log_loss = np.log(published("chinchilla-epoch-2024")(points)) + noise * random.standard_normal(runs)
    if bend is not None:
        values = np.log({"N": N, "D": D, "C": N * D}[bend])
        log_loss += BEND * ((2 * values - values.min() - values.max()) / np.ptp(values)) ** 2
    names = np.array([f"run {k}" for k in range(runs)])
    return Observations(points, np.exp(log_loss), names, "simulated", Counting.WITH_EMBEDDINGS)


def share(make: Callable[[int], Observations], word: str, seeds: range = TRIALS) -> float:
    """Return the share of sweeps whose fit has a warning that contains ``word``."""
    return float(np.mean([any(word in text for text in fit(make(seed), resamples=0).warnings) for seed in seeds]))


def main() -> None:
    """Print false alarms in clean sweeps and detections in bent ones."""
    for runs in RUNS:
        rates = [share(lambda seed, runs=runs: simulated(runs, seed), word) for word in ("outlier", "lack of fit")]
        print(f"clean, {runs:>2} runs: outliers in {rates[0]:.0%}, lack of fit in {rates[1]:.0%}", flush=True)
    for noise, bend in product(BENT_NOISES, "NDC"):
        rate = share(lambda seed, bend=bend, noise=noise: simulated(BENT_RUNS, seed, bend, noise), "lack of fit")
        print(f"bent along {bend}, {BENT_RUNS} runs, noise {noise:.1%}: found in {rate:.0%}", flush=True)


if __name__ == "__main__":
    main()
