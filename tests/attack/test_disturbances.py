"""Sweeps of two-process runs that are disturbed in every way, on every backend; the numbers are in docs/security.md."""

import random

import pytest

pytest.importorskip("torch")

import disturbances


@pytest.mark.slow
@pytest.mark.parametrize("backend", disturbances.BACKENDS)
def test_a_disturbed_sweep_exports_the_same_bytes(tmp_path, backend):
    wanted = disturbances._undisturbed(tmp_path)
    kinds = [*disturbances.KINDS, *(disturbances.OF_RAY if backend == "ray" else ())]
    with disturbances.sweep_folder(tmp_path / backend) as path:
        done, exported = disturbances.disturb(path, backend, kinds, random.Random(0))
    assert done
    assert exported == wanted
