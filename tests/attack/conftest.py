"""Files of every kind, made once even when several processes run the tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Return a folder with one of everything that loopscale writes; not to be changed."""
    pytest.importorskip("torch")
    from filelock import FileLock

    from attack import prepare

    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "one-of-everything"
    with FileLock(f"{folder}.lock"):
        if not (folder / "model").is_dir():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(folder)
                prepare(folder)
    return folder


@pytest.fixture(scope="module")
def files(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of that folder."""
    return Path(shutil.copytree(made, tmp_path_factory.mktemp("copy") / "files"))
