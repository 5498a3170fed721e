"""Generated questions never end in a traceback, and every surface gives the same answer; see ``make attack``."""

import api
import differential
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


def test_every_surface_answers_random_questions_alike():
    verdicts, bad = differential.attack(150, seed=7)
    assert not bad
    answered = sum(count for (kind, _), count in verdicts.items() if kind != "refused")
    assert 2 * answered > verdicts.total(), verdicts
