"""Generated commands, files and requests never end in a traceback, and a third of them work; see ``make attack``."""

import api
import fuzz


def check(verdicts, bad):
    assert not bad
    works = sum(count for (_, verdict), count in verdicts.items() if verdict == "works")
    assert 3 * works >= verdicts.total(), verdicts


def test_generated_commands(files, monkeypatch):
    monkeypatch.chdir(files)
    check(*fuzz.attack(files, 120))


def test_generated_requests(files, monkeypatch):
    monkeypatch.chdir(files)
    check(*api.attack(files, 200))
