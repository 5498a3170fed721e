"""Workers as tasks of a Ray cluster: one that is there, or one of this machine for as long as the sweep runs."""

from __future__ import annotations

import logging
from typing import Any

from loopscale.errors import InputError
from loopscale.sweep.worker import Job, work


class RayWorker:
    """A task."""

    def __init__(self, ray: Any, task: Any) -> None:
        self._ray, self._task = ray, task

    def alive(self) -> bool:
        """Tell whether it waits or runs."""
        ready, _ = self._ray.wait([self._task], timeout=0)
        return not ready

    def well(self) -> bool:
        """Tell whether it ended by itself."""
        try:
            self._ray.get(self._task)
        except self._ray.exceptions.RayError:
            return False
        return True

    def kill(self) -> None:
        """End it now."""
        self._ray.cancel(self._task, force=True)


class Ray:
    """A cluster; a task takes one CPU."""

    def __init__(self, address: str | None, workers: int | None) -> None:
        try:
            import ray
        except ImportError:
            raise InputError("--on ray: the package ray is not installed; pip install 'loopscale[ray]'") from None
        self._ray: Any = ray
        own: dict[str, Any] = {"num_cpus": workers, "include_dashboard": False} if address is None else {}
        try:
            ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **own)
        except Exception as error:  # Ray raises whatever it met
            what = "no cluster could be started here" if address is None else f"no cluster answers at {address!r}"
            raise InputError(f"--on ray: {what}: {_first_line(error)}") from None
        # A task that dies is not Ray's to repeat: the run is taken over through the store.
        self._work = ray.remote(num_cpus=1, max_retries=0)(work)

    @property
    def places(self) -> int:
        """How many workers the cluster has room for."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def start(self, job: Job, place: int) -> RayWorker:
        """Submit a task."""
        return RayWorker(self._ray, self._work.remote(job))

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        self._ray.shutdown()


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
