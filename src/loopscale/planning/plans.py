"""The plan: a frozen record of what to train and why, which loads equal to what was saved."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loopscale.architecture import Space
from loopscale.core.devices import NODE, utilisation_of
from loopscale.core.files import fields_as_json, read_json, write_json
from loopscale.planning.budget import Budget
from loopscale.planning.compute import device_flops, device_hours
from loopscale.planning.design import Design
from loopscale.planning.grid import Rule
from loopscale.planning.searching import COSTS, Edge, FrontRow, Search, Vote, search
from loopscale.planning.sensitivity import (
    BitsChoice,
    CachePolicy,
    NextBest,
    Sensitivity,
    at_real_bits,
    cache_policies,
    next_best,
    sensitivities,
)
from loopscale.planning.text import sentences, short, table_html
from loopscale.scaling import Trust

if TYPE_CHECKING:
    from loopscale.planning.cluster import Cluster, ClusterCost
    from loopscale.planning.growing import Growth

SCHEMA = 2
LISTED = 20
"""Ranked candidates that a plan holds."""


@dataclass(frozen=True, repr=False)
class Plan:
    """A chosen design, the closest others, and how far the choice can be trusted.

    The whole grid of candidates is not part of it: ``loopscale.planning.search`` returns that.
    """

    law: str
    """The law by name."""
    resamples: int
    """Resampled laws that it carries."""
    law_eps: float | None
    """The fit error that the law states."""
    rule: Rule
    eps: float
    """The smallest gain that justifies a step."""
    budget: Budget
    choice: Design
    trust: Trust
    interval: dict[str, float | str] | None
    """The 90% interval of the choice's loss, with what it rests on; None where the law has no resamples."""
    uncertainty: str
    """What the interval and the agreement rest on, or why there are none."""
    lead: float | None
    """Loss that the choice saves over the best other admissible design; None when there is no other."""
    agreement: float | None
    """Share of resampled laws under which the choice is within eps of the best."""
    votes: tuple[Vote, ...]
    """Each design that some resampled law chooses, with the share that does, largest first."""
    tied_sizes: tuple[float, float] | None
    """Where sizes are continuous: the active sizes within eps of the best."""
    edge: tuple[Edge, ...]
    """Axes on which the choice is the last value searched."""
    unspent_flops: float
    real_train_flops: dict[str, float] | None
    """Training FLOPs with output head, routers, attention and expert padding, and with per-loop supervision."""
    candidates_in_all: int
    sensitivities: tuple[Sensitivity, ...] = ()
    """What looser limits would buy, the largest gain first."""
    next_best: NextBest | None = None
    """The better design that needs the least more than the limits allow."""
    at_real_bits: BitsChoice | None = None
    """What 4-bit weights allow in a format that people use, where that is another design."""
    kv_policies: tuple[CachePolicy, ...] = ()
    """The best design for each way to keep keys and values."""
    rivals: tuple[Design, ...] = ()
    """The closest alternatives."""
    candidates: tuple[Design, ...] = ()
    """The first ranked candidates."""
    devices: ClusterCost | None = None
    """What training takes on the devices that were named; None where none were."""
    pareto: dict[str, tuple[FrontRow, ...]] = field(default_factory=dict)
    """The designs that no other beats in both loss and memory, or loss and inference cost."""
    frontier: dict[str, float] | None = None
    """What the frontier of the law's runs forecasts for the choice, where that lies outside the interval."""
    growth: Growth | None = None
    """Passes that grow during training, where they were asked for and save eps: the choice is trained by them."""

    @classmethod
    def of(
        cls,
        result: Search,
        *,
        candidates: int = LISTED,
        whole: bool = True,
        grow: bool = False,
        cluster: Cluster | None = None,
        price: float | None = None,
    ) -> Plan:
        """Record a search, with what it takes on ``cluster`` at a ``price`` in dollars a device-hour.

        Without ``whole``, what needs further searches and long tables is left out. With ``grow``, passes may grow
        during training.
        """
        answer = cls(
            law=result.law.name,
            resamples=0 if result.law.resamples is None else len(result.law.resamples),
            law_eps=result.law.eps,
            rule=result.grid.rule,
            eps=result.grid.eps,
            budget=result.budget,
            choice=result.choice,
            trust=result.trust,
            interval=result.interval,
            frontier=result.frontier,
            uncertainty=result.law.uncertainty,
            lead=result.lead,
            agreement=result.agreement,
            votes=result.votes(),
            tied_sizes=result.tied_sizes,
            edge=result.edges,
            unspent_flops=result.unspent_flops,
            real_train_flops=result.real_train_flops(),
            candidates_in_all=int(np.prod(result.grid.space.shape)),
            devices=None if cluster is None else cluster.cost(result.choice, price),
        )
        if grow:
            from loopscale.planning.growing import best_schedule

            answer = replace(answer, growth=best_schedule(result))
        if not whole:
            return answer
        further: dict[str, Any] = {
            "sensitivities": sensitivities(result),
            "next_best": next_best(result),
            "at_real_bits": at_real_bits(result),
            "kv_policies": cache_policies(result),
            "rivals": result.rivals(),
            "candidates": result.candidates(candidates),
            "pareto": {cost: result.front_rows(cost) for cost in COSTS},
        }
        return replace(answer, **further)

    @property
    def binding(self) -> list[str]:
        """The limits that hold the loss up: those that would lower it if they were looser, the strongest first."""
        return [row.limit for row in self.sensitivities if row.binds]

    @property
    def trained(self) -> Design:
        """The choice as it is to be trained: by its schedule of passes where it has one."""
        return self.choice if self.growth is None else self.growth.design(self.choice)

    @property
    def schedule(self) -> tuple[tuple[float, int], ...]:
        """The stages of the passes in training; none where they stay the same."""
        return () if self.growth is None else self.growth.schedule

    @property
    def cluster(self) -> Cluster:
        """The devices that the plan names; without any, a node of H100."""
        from loopscale.planning.cluster import Cluster

        named = self.devices
        return Cluster() if named is None else Cluster(named.device, named.devices, named.utilisation)

    def train_config(self, cluster: Cluster | None = None) -> dict[str, dict[str, Any]]:
        """Return the sections of a training file for the choice, as ``TrainConfig.from_dict`` reads them."""
        from loopscale.planning.training_file import train_config

        return train_config(self.trained, self.law, cluster or self.cluster, self.schedule)

    def train_file(self, cluster: Cluster | None = None) -> str:
        """Return the choice as a training file (TOML), with what it takes on its devices in comments."""
        from loopscale.planning.training_file import train_file

        return train_file(self.trained, self.law, cluster or self.cluster, self.budget, self.schedule)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, with its sentences."""
        header = {"kind": "plan", "schema": SCHEMA}
        return {**header, **fields_as_json(self), "binding": self.binding, "sentences": sentences(self)}

    @classmethod
    def from_dict(cls, data: object, where: str = "plan") -> Plan:
        """Read a plan from plain values; ``where`` names their origin in errors."""
        from loopscale.planning.plan_file import read_plan  # pydantic takes a moment to import

        return cls(**read_plan(data, where))

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON."""
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan that ``save`` or ``loopscale plan --out`` wrote."""
        return cls.from_dict(read_json(path), str(path))

    def summary(self) -> str:
        """Return the answer, its costs and the nearest designs on one screen, as ``loopscale plan`` prints them."""
        from loopscale.planning.screen import plan_screen  # texts for terminals, which few programs print

        return plan_screen(self, self.rivals, ending='Save: .save("plan.json"). The training file: .train_file()')

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        return short(self)

    def _repr_html_(self) -> str:
        return table_html(self)


def plan(
    budget: Budget | None = None,
    space: Space | None = None,
    law: Any = None,
    *,
    eps: float | None = None,
    rule: Rule | str = Rule.PAPER,
    extrapolate: bool = False,
    allow_degenerate: bool = False,
    grow: bool = False,
    gpus: int | None = None,
    days: float | str | None = None,
    device: str | None = None,
    utilisation: float | str | None = None,
    price: float | None = None,
    **limits: Any,
) -> Plan:
    """Choose the design with the lowest predicted loss among those that fit the budget and pass the rule.

    Give the limits directly, ``plan(flops="5e21", memory="3GB", bits="int4")``, or as a ``Budget``. Compute may
    also be devices: ``plan(gpus=8, device="h100", days=14, memory="3GB")``; ``price`` is in dollars a device-hour.
    ``law`` is a fit, a law, the name of a published law or a law file. Without ``space``, the paper's ladder is
    searched and extended as far as the budget asks; an axis of ``space`` with one value is held fixed, the others are
    optimised.
    The answer is withheld where it lies more than 10x beyond what the law was fitted on, unless ``extrapolate``.
    With ``grow``, the plan also has the schedule of passes that grows during training, where one saves eps.
    """
    stated = {name for name in ("flops", "real_flops") if name in limits or getattr(budget, name, None) is not None}
    hours = device_hours(gpus, days, flops_stated=bool(stated))
    cluster = None
    if device is not None or gpus is not None:
        from loopscale.planning.cluster import Cluster

        cluster = Cluster(device or "h100", gpus or NODE, utilisation_of(utilisation))
    rules: dict[str, Any] = {
        "eps": eps, "rule": rule, "extrapolate": extrapolate, "allow_degenerate": allow_degenerate,
    }  # fmt: skip
    if hours is None or cluster is None:
        result = search(budget, space, law, **rules, **limits)
    else:
        from loopscale.planning.device_search import search_on

        limits["real_flops"] = device_flops(hours, cluster.device, cluster.utilisation)
        result = search_on(cluster, budget, space, law, **rules, **limits)
    return Plan.of(result, grow=grow, cluster=cluster, price=price)
