"""What a command writes as a whole: a new folder, or a file that appears when it is complete."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loopscale.core.errors import InputError, LoopscaleError, StorageError
from loopscale.core.files import replace_folder
from loopscale.core.quantities import counted


def new_folder(out: str) -> Path:
    """Return a folder to write to; one that has files is refused."""
    target = Path(out)
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        files = "it is a file" if target.is_file() else f"it has {counted(len(list(target.iterdir())), 'file')}"
        raise InputError(f"`out` is {out}, and {files}; name a new folder")
    return target


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """Give a file or folder to write, which gets its name when it is complete; an error leaves nothing of it."""
    from loopscale.model.loading import quiet
    from loopscale.train.checkpoints import disk_error

    written = target.with_name(f".{target.name}.partial")
    _remove(written)
    try:
        written.parent.mkdir(parents=True, exist_ok=True)
        with quiet():
            yield written
        if written.is_dir():
            replace_folder(written, target)
        else:
            written.replace(target)
    except Exception as error:
        if isinstance(error, LoopscaleError) or (cause := disk_error(error)) is None:
            raise
        raise StorageError(f"{target}: cannot be written: {cause}") from None
    finally:
        _remove(written)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
