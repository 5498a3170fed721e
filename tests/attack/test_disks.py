"""Commands on a disk that fills up, in short; ``make attack`` takes more sizes."""

from disks import attack


def test_a_full_disk_is_one_sentence_and_leaves_nothing_half_written(files, monkeypatch):
    monkeypatch.chdir(files)
    verdicts = attack(files, (40,))
    wrong = {key: count for key, count in verdicts.items() if key[1] not in ("works", "refused", "not run")}
    assert not wrong, wrong
