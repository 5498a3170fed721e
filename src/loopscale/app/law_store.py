"""The laws that plans may name: the published ones, and the latest that clients sent."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from threading import Lock
from typing import Any

from loopscale.app.problems import RefusalError
from loopscale.app.security import Limits
from loopscale.core.errors import InputError, nearest, shown
from loopscale.core.text import capital
from loopscale.scaling import PUBLISHED, ScalingLaw, find_law

SUMMARY = ("name", "source", "note", "outer", "mapping", "coefficients", "units", "counts", "rmse", "range")


class LawStore:
    """Laws by name or id; of the laws that clients send, the latest are kept."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._own: OrderedDict[str, ScalingLaw] = OrderedDict()
        self._lock = Lock()

    def add(self, law: ScalingLaw) -> str:
        """Keep a law and return its id, which follows from its content."""
        digest = hashlib.sha256(json.dumps(law.to_dict(), sort_keys=True).encode()).hexdigest()
        identity = f"own-{digest[:16]}"
        with self._lock:
            self._own[identity] = law
            self._own.move_to_end(identity)
            while len(self._own) > self._limits.laws:
                self._own.popitem(last=False)
        return identity

    def read(self, data: object) -> ScalingLaw:
        """Read a law that a client sent."""
        law = ScalingLaw.from_dict(data, "law")
        if law.resamples is not None and len(law.resamples) > self._limits.resamples:
            count, most = len(law.resamples), self._limits.resamples
            raise InputError(f"law: it carries {count:,} resampled laws; at most {most:,} are taken here")
        return law

    def find(self, choice: str | dict[str, Any]) -> ScalingLaw:
        """Return the law that a request names, or holds."""
        if not isinstance(choice, str):
            return self.read(choice)
        if choice in PUBLISHED:
            return find_law(choice)
        with self._lock:
            law = self._own.get(choice)
        if law is None:
            near = nearest(choice, PUBLISHED)
            raise RefusalError(
                404, f"law {shown(choice)} is not known here{near}; see /api/laws, or send the law itself"
            )
        return law


def summary(identity: str, law: ScalingLaw) -> dict[str, Any]:
    """Return what a person needs to choose a law; its resampled laws are only counted."""
    data, form = law.to_dict(), str(law.form)
    source = f"{capital(law.source)}. " if law.source else ""
    error = "States no RMSE" if law.rmse is None else f"RMSE {law.rmse:.3g} nats"
    uncertainty = f"uncertainty: {law.uncertainty}"
    if law.resamples is not None:
        uncertainty = f"{len(law.resamples)} resampled laws" + (f", {law.uncertainty}" if law.resampled_by else "")
    return {
        "id": identity,
        "form": form,
        "resamples": 0 if law.resamples is None else len(law.resamples),
        **{name: data[name] for name in SUMMARY},
        "about": f"{source}{capital(form)}. {error}; {uncertainty}.",
    }
