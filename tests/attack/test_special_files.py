"""What is not an ordinary file is read with limits, and written to without being replaced."""

import os
import stat
import threading
from pathlib import Path

import pytest

from loopscale.cli import main
from loopscale.core import files
from loopscale.core.errors import InputError


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    pipe, arrived = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: arrived.append(pipe.read_bytes()))
    reader.start()
    files.write_bytes(pipe, b"content")
    reader.join()
    assert arrived == [b"content"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_stays_a_device(tmp_path):
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        device.write_bytes(b"")
    except OSError:
        pytest.skip("only root may make a device that can be written")
    files.write_bytes(device, b"content")
    assert stat.S_ISCHR(device.stat().st_mode)


def test_a_link_stays_and_its_target_is_written(tmp_path):
    (tmp_path / "real.json").write_text("old")
    link, dangling = tmp_path / "link.json", tmp_path / "dangling.json"
    link.symlink_to("real.json")
    dangling.symlink_to("new.json")
    files.write_text(link, "new")
    files.write_text(dangling, "new")
    assert link.is_symlink()
    assert dangling.is_symlink()
    assert [(tmp_path / name).read_text() for name in ("real.json", "new.json")] == ["new", "new"]


def test_a_link_to_itself_is_refused(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match="cannot be written"):
        files.write_text(tmp_path / "loop", "text")


def test_a_file_keeps_its_mode_and_a_new_one_follows_the_umask(tmp_path):
    private = tmp_path / "private"
    private.write_text("old")
    private.chmod(0o600)
    files.write_text(private, "new")
    before = os.umask(0o027)
    try:
        files.write_text(tmp_path / "shared", "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o640


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_or_interrupted_write_leaves_the_old_file_alone(tmp_path, monkeypatch, error):
    def fail(file):
        raise error

    target = tmp_path / "law.json"
    target.write_text("old")
    monkeypatch.setattr(files, "flush_file", fail)
    with pytest.raises((InputError, KeyboardInterrupt)):
        files.write_text(target, "new")
    assert target.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["law.json"]


def test_a_dash_is_standard_output(capfdbinary):
    files.write_bytes("-", b"content\n")
    assert capfdbinary.readouterr().out == b"content\n"
    assert not Path("-").exists()


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="this system has no /dev/zero")
def test_input_without_an_end_is_refused_by_its_size(monkeypatch, capsys):
    monkeypatch.setattr(files.read_bytes, "__defaults__", (2**20,))
    with pytest.raises(SystemExit) as stop:
        main(["train", "/dev/zero", "--check"])
    assert stop.value.code == 2
    assert "/dev/zero: it has more than" in capsys.readouterr().err


def test_a_pipe_that_stays_silent_is_refused(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "silent")
    monkeypatch.setattr(files, "SILENCE_SECONDS", 0.05)
    with pytest.raises(InputError, match="nothing arrived"):
        files.read_json(tmp_path / "silent")


def test_a_pipe_with_a_writer_is_read_to_its_end(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text('{"answer": 42}'))
    writer.start()
    assert files.read_json(pipe) == {"answer": 42}
    writer.join()
