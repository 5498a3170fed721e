"""Workers as tasks of a Ray cluster: a running one, or one of this machine for as long as the sweep runs."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from loopscale.core.errors import InputError, StorageError, require
from loopscale.sweep.backends.backend import Backend, Setting
from loopscale.sweep.store import Assignment, Resources

if TYPE_CHECKING:
    from loopscale.sweep.spec import Sweep


class RayWorker:
    """The tasks of one worker, one for each node of its runs, and the placement group that they run in."""

    def __init__(self, cluster: Ray, tasks: list[Any], group: Any) -> None:
        self._cluster, self._ray, self._tasks, self._group = cluster, cluster.ray, tasks, group

    def alive(self) -> bool:
        """Tell whether the first task, which claims the runs, waits or runs; when it ends, so do the others."""
        if self._cluster.lost:
            return False
        ready, _ = self._ray.wait(self._tasks[:1], timeout=0)
        if ready:
            self._release()
        return not ready

    def succeeded(self) -> bool:
        """Tell whether it ended normally."""
        try:
            self._ray.get(self._tasks[0])
        except self._ray.exceptions.RayError:
            return False
        return True

    def problem(self) -> str | None:
        """Return what the worker said about a problem of all workers."""
        try:
            sentence = self._ray.get(self._tasks[0])
        except self._ray.exceptions.RayError:
            return None
        return None if sentence is None else str(sentence)

    def kill(self) -> None:
        """End it now."""
        for task in self._tasks:
            self._ray.cancel(task, force=True)
        self._release()

    def _release(self) -> None:
        for task in self._tasks[1:]:
            self._ray.cancel(task, force=True)
        if self._group is not None:
            self._ray.util.remove_placement_group(self._group)
            self._group = None


class Ray:
    """A cluster; each process of a run takes one GPU, or one CPU where the cluster has no GPUs."""

    def __init__(self, address: str | None, workers: int | None, needs: Collection[Resources]) -> None:
        self.ray: Any = require("ray", extra="ray", what="--on ray")
        self.lost = False
        """The head or this machine's node has ended: nothing more can be asked of the cluster."""
        self._largest = max((need.processes for need in needs), default=1)
        cpus = None if workers is None else workers * self._largest
        own: dict[str, Any] = {"num_cpus": cpus, "include_dashboard": False} if address is None else {}
        try:
            self.ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **own)
        except Exception as error:  # Ray raises many kinds
            what = "no cluster could be started here" if address is None else f"no cluster answers at {address!r}"
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"--on ray: {what}: {reason}; check --ray-address, or use --on local") from None
        resources = self.ray.cluster_resources()
        self._kind = "GPU" if resources.get("GPU", 0) >= 1 else "CPU"
        self._count = int(resources.get(self._kind, 1))
        if self._largest > self._count:
            self.close()
            raise InputError(
                f"--on ray: a run needs {self._largest} processes, and the cluster has {self._count} {self._kind}s; "
                "give a smaller number with --processes, or use a larger cluster"
            )

    @property
    def workers(self) -> int:
        """The number of workers that the cluster has room for."""
        return max(1, self._count // self._largest)

    def start(self, assignment: Assignment) -> RayWorker:
        """Submit the tasks of a worker, in a placement group if a run needs several processes."""
        gpus, nodes = assignment.processes_per_node, assignment.resources.nodes
        if gpus * nodes == 1:
            return RayWorker(self, [self._task(1).remote(assignment)], None)
        bundle = {"CPU": gpus} | ({"GPU": gpus} if self._kind == "GPU" else {})
        group = self.ray.util.placement_group([bundle] * nodes, strategy="SPREAD" if nodes > 1 else "STRICT_PACK")
        strategy = self.ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        tasks = [
            self._task(gpus, scheduling_strategy=strategy(group, placement_group_bundle_index=node)).remote(
                replace(assignment, node=node)
            )
            for node in range(nodes)
        ]
        return RayWorker(self, tasks, group)

    def _task(self, processes: int, **options: Any) -> Any:
        from loopscale.sweep.worker import work  # loads torch

        gpus = {"num_gpus": processes} if self._kind == "GPU" else {}
        # Ray does not repeat a task that crashes: the next worker takes its run over through the store.
        return self.ray.remote(num_cpus=processes, max_retries=0, **gpus, **options)(work)

    def wait(self, seconds: float) -> None:
        """Wait so long; a lost cluster is an error, as Ray would wait for it and then end this process."""
        time.sleep(seconds)
        if not self._lives():
            self.lost = True
            raise StorageError(
                "--on ray: the cluster was lost: its head or the node of this machine has ended; run the same command "
                "again, and the runs resume from their checkpoints"
            )

    def _lives(self) -> bool:
        """Tell whether the cluster's head listens and knows the node that this process is connected to."""
        context = self.ray.get_runtime_context()
        host, _, port = context.gcs_address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
        except ConnectionRefusedError:
            return False
        except OSError:  # slow, not lost
            return True
        return any(node["Alive"] for node in self.ray.nodes() if node["NodeID"] == context.get_node_id())

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        self.ray.shutdown()


class RayBackend(Backend):
    """A running Ray cluster, or one of this machine."""

    summary = "a Ray cluster"
    settings: ClassVar[Mapping[str, Setting]] = {
        "ray_address": Setting("A running cluster, like auto or HOST:6379.  [default: one of this machine]")
    }

    def launcher(self, sweep: Sweep) -> tuple[Ray, int]:
        cluster = Ray(self.values.get("ray_address"), self.workers, self.needs(sweep))
        return cluster, self.workers or cluster.workers
