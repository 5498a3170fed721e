"""How fast a fit is: cold against the paper's recipe, refits against refits, and against PyPI's ``chinchilla``.

Also a backtest and a forecast, in cold fits of the same rows, and a law that a user wrote against the built-in one.

CPU seconds of one process. The epoch rows are read from the folder in LOOPSCALE_DATA, and ``chinchilla`` 0.2.0 from
wherever Python finds it; each part that lacks its means says so and is left out.
"""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the matrices are small: threads only cost

import numpy as np

from loopscale.core.errors import InputError
from loopscale.fitting import Fit, Observations, fit, load_public, simulate_sweep
from loopscale.fitting.backtest import backtest
from loopscale.fitting.forecasting import forecast
from timing import Ratio

SEEDS = range(15)
REFITS = 100
PAPER_REFITS = 4
"""Paper-recipe refits that are timed; 100 would take a minute. The ratio is of times per refit."""
GRID = {
    "E": np.linspace(1, 2, 3), "a": np.linspace(1, 10, 3), "b": np.linspace(1, 10, 3),
    "alpha": np.linspace(0.1, 0.7, 3), "beta": np.linspace(0.1, 0.7, 3),
}  # fmt: skip
"""The spans of the package's own example, three values each: 243 starts."""


def cpu(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU seconds that ``work`` took, and what it returned."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def cold() -> tuple[Ratio, list[tuple[Fit, Fit]]]:
    """Time cold default fits of the 14-coefficient law and the paper's recipe, on the same simulated sweeps."""
    ours, peer, fits = [], [], []
    for recipe in ("default", "paper"):  # the first call of all pays for imports and caches
        fit(simulate_sweep(tokens=(1e11, 3e11)), recipe=recipe, resamples=0)
    for seed in SEEDS:
        data = simulate_sweep(seed=seed)
        our_time, default = cpu(lambda data=data: fit(data, resamples=0))
        peer_time, paper = cpu(lambda data=data: fit(data, recipe="paper", resamples=0))
        ours.append(our_time)
        peer.append(peer_time)
        fits.append((default, paper))
    return Ratio(f"cold fit of 14 coefficients on {len(data):,} rows against the paper's recipe", ours, peer), fits


def refits() -> Ratio:
    """Time warm refits on resampled runs, and the paper's recipe on such resamples."""
    ours, peer = [], []
    for seed in SEEDS[:3]:
        data = simulate_sweep(seed=seed)
        fitted = fit(data, resamples=0)
        ours.append(cpu(lambda fitted=fitted, seed=seed: fitted.resample(REFITS, seed=seed, workers=1))[0])
        again = [resampled_runs(data, draw) for draw in range(PAPER_REFITS)]
        seconds = cpu(lambda again=again: [fit(each, recipe="paper", resamples=0) for each in again])[0]
        peer.append(seconds * REFITS / PAPER_REFITS)
    return Ratio(f"{REFITS} refits on resampled runs against {REFITS} of the paper's recipe", ours, peer)


def resampled_runs(data: Observations, seed: int) -> Observations:
    """Return as many runs as there are, drawn with replacement."""
    drawn = np.random.default_rng(seed).choice(data.runs, len(data.runs))
    return data.where(np.concatenate([np.flatnonzero(data.run == run) for run in drawn]))


def epoch(rounds: int = 3) -> tuple[Ratio, float, float]:
    """Time a cold default fit of Chinchilla's law and the package's grid; return the objectives of both too."""
    data = load_public("epoch-chinchilla")
    ours, peer, values = [], [], []
    for _ in range(rounds):
        our_time, default = cpu(lambda: fit(data, outer="chinchilla", mapping="none", resamples=0))
        peer_time, value = cpu_chinchilla(data)
        ours.append(our_time)
        peer.append(peer_time)
        values.append(value)
    name = f"cold fit of 5 coefficients on {len(data)} rows against chinchilla 0.2.0 with 243 starts"
    return Ratio(name, ours, peer), default.objective, min(values)


def cpu_chinchilla(data: Observations) -> tuple[float, float]:
    """Return the CPU seconds of the package's fit in one process, and our objective at its optimum."""
    from chinchilla import Chinchilla  # type: ignore[import-not-found]
    from chinchilla._metrics import log_huber  # type: ignore[import-not-found]

    N, D = data.points.active, data.points.tokens
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        peer = Chinchilla(folder, GRID, loss_fn=lambda true, guess: log_huber(true, guess, delta=1e-3), log_level=50)
        for row in zip(N.tolist(), D.tolist(), data.loss.tolist(), strict=True):
            peer.append(N=row[0], D=row[1], loss=row[2])
        peer.visualizer.optim = lambda *_, **__: None  # drawing is not fitting
        seconds, _ = cpu(lambda: peer.fit(parallel=False))
        predicted = peer.E + peer.A / N**peer.alpha + peer.B / D**peer.beta
    far = np.abs(np.log(np.asarray(predicted, dtype=float)) - np.log(data.loss))
    return seconds, float(np.where(far <= 1e-3, 0.5 * far**2, 1e-3 * (far - 0.5e-3)).sum())


WRITTEN = "c + A/N**alpha + B/D**beta"


def backtests(rounds: int = 7) -> tuple[Ratio, Ratio]:
    """Time a cold fit of 240 rows against a backtest of them with 100 resamples, and that with its rolling origins."""
    data = load_public("epoch-chinchilla")
    alone, rolling, ours = [], [], []
    backtest(data, resamples=2)
    for _ in range(rounds):
        ours.append(cpu(lambda: fit(data, resamples=0))[0])
        alone.append(cpu(lambda: backtest(data, resamples=REFITS, rolling=False))[0])
        rolling.append(cpu(lambda: backtest(data, resamples=REFITS))[0])
    name = f"cold fits in the time of a backtest of {len(data)} rows with {REFITS} resamples"
    return Ratio(name, ours, alone), Ratio(f"{name} and its rolling origins", ours, rolling)


def forecasts(rounds: int = 7) -> Ratio:
    """Time a cold fit of 240 rows against a forecast from them with 100 resamples."""
    data = load_public("epoch-chinchilla")
    alone, whole = [], []
    forecast(data, flops=1e23, resamples=2)
    for _ in range(rounds):
        alone.append(cpu(lambda: fit(data, resamples=0))[0])
        whole.append(cpu(lambda: forecast(data, flops=1e23, resamples=REFITS))[0])
    return Ratio(f"cold fits in the time of a forecast from {len(data)} rows with {REFITS} resamples", alone, whole)


def written(rounds: int = 9) -> Ratio:
    """Time a cold fit of a law that a user wrote, against the built-in form on the same rows."""
    data, built_in, own = load_public("epoch-chinchilla"), [], []
    fit(data, outer=WRITTEN, resamples=0)
    for _ in range(rounds):
        built_in.append(cpu(lambda: fit(data, outer="chinchilla", resamples=0))[0])
        own.append(cpu(lambda: fit(data, outer=WRITTEN, resamples=0))[0])
    return Ratio("cold fit of a written expression, in times of the built-in form", built_in, own)


def main() -> None:
    """Print the ratios."""
    ratio, fits = cold()
    above = [100 * (paper.objective / default.objective - 1) for default, paper in fits]
    print(f"{ratio} (wanted: 8x or more)")
    print(f"  the recipe ends {min(above):.3f}% to {max(above):.3f}% above our objective (sums of Huber terms)")
    print(f"{refits()} (wanted: 150x or more; {PAPER_REFITS} timed, scaled)")
    try:
        ratio, ours, peer = epoch()
        print(f"{ratio} (wanted: 400x or more)\n  objective {ours:.7g} against {peer:.7g}")
    except ModuleNotFoundError:
        print("chinchilla 0.2.0 is not installed (pip install chinchilla==0.2.0): that comparison is left out")
    except InputError as error:
        print(f"the epoch rows are not here, so comparisons on them are left out: {error}")
        return
    for ratio in (*backtests(), forecasts()):
        print(f"{ratio} (wanted: under 20x)")
    print(f"{written()} (wanted: within 3x)")


if __name__ == "__main__":
    main()
