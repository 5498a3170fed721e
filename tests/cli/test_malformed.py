"""Thousands of malformed arguments and files: one sentence and exit code 2, or a proper answer; never a traceback."""

import io
import json
from contextlib import redirect_stderr, redirect_stdout

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loopscale.cli import main
from loopscale.scaling import published

SIZES = ("--rung", "--width", "--experts", "--active-experts", "--recurrence")
OPTIONS = {
    "plan": (
        *SIZES, "--flops", "--like", "--like-tokens", "--gpu-hours", "--device", "--utilisation", "--tokens",
        "--max-tokens", "--memory", "--bits", "--context", "--batch", "--kv-bits", "--kept-passes",
        "--inference-flops", "--serve-tokens", "--eps", "--rule", "--law", "--top", "--config", "--candidates",
        "--gpus", "--days", "--dollars", "--price", "--for", "--unique-tokens", "--kv-window",
    ),
    "predict": (*SIZES, "--layers", "--tokens", "--flops", "--law", "--config", "--params"),
    "matched": ("--flops", "--law"),
    "profile": ("--flops", "--memory", "--bits", "--rung", "--experts", "--recurrence", "--eps", "--law"),
    "count": (*SIZES, "--layers", "--bits", "--context", "--batch", "--kept-passes", "--config"),
    "laws": ("--law",),
}  # fmt: skip
NEAR_MISSES = [
    "", "0", "-1", "1e400", "1e-400", "nan", "inf", "-inf", "1e21", "5e21x", "3GB", "3GBB", "GB", "int4", "int0",
    "fp65", "0.3B", "0.3", "1B", "9B", "0.6B:8:1", "0.6B::", ":::", "0.6B:8:0", "6T", "T", "1..10", "10..1", "1..",
    "1,,2", "1,2,", "0x10", "1e", "٣", "½", "1_0", "--", "-", "None", "true", "[1]", "{}", "h100", "H1OO", "0.4",
    "40%", "paper", "loss", "looped-moe-2026", "routed-hash-2022", "/", ".", "/dev/null", "\x00", "a" * 500,
    "1" * 400, "2.5", "1e3", "999999", "\n",
]  # fmt: skip
words = st.one_of(st.sampled_from(NEAR_MISSES), st.text(max_size=8), st.floats().map(str), st.integers().map(str))


def call(argv: list[str]) -> tuple[int, str, str]:
    """Run the command in this process and return its exit code and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main(argv)
    except SystemExit as stop:
        return int(stop.code or 0), out.getvalue(), err.getvalue()
    raise AssertionError("the command returned without an exit code")


def check(argv: list[str]) -> None:
    code, out, err = call(argv)
    assert code in (0, 2), (argv, err)
    assert "Traceback" not in err
    if code == 2:
        assert err.strip(), argv
        assert err.count("\n") == 1, (argv, err)
        assert out == "", argv
    elif "--json" in argv:
        json.loads(out, parse_constant=lambda name: (_ for _ in ()).throw(AssertionError(name)))


@st.composite
def commands(draw):
    verb = draw(st.sampled_from(list(OPTIONS)))
    argv = [verb]
    if verb == "profile":
        argv.append(
            draw(st.sampled_from(["size", "recurrence", "experts", "best-recurrence", "best-experts", "joint", "x"]))
        )
    if verb == "matched":
        argv += [draw(st.sampled_from(["0.3B:8:4", "0.6B", "1.0B:1:1", "0.6B:8:0", ":::"])) for _ in range(2)]
    # A good start reaches further into the command than noise alone.
    good = {
        "plan": ["--flops", "5e21"],
        "predict": ["--rung", "0.3B", "--tokens", "1T"],
        "count": ["--rung", "0.3B"],
        "matched": ["--flops", "5e21"],
    }
    argv += draw(st.sampled_from([[], good.get(verb, [])]))
    for option in draw(st.lists(st.sampled_from(OPTIONS[verb]), max_size=4, unique=True)):
        argv += [option, draw(words)]
    argv += draw(st.lists(st.sampled_from(["--json", "--csv", "--continuous"]), max_size=2, unique=True))
    return argv + draw(st.sampled_from([[], [], [], [draw(words)]]))


@settings(max_examples=2000, suppress_health_check=[HealthCheck.too_slow])
@given(commands())
def test_no_arguments_bring_a_traceback(argv):
    check(argv)


values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def broken_laws(draw):
    """Return a law file with something wrong in it: a field dropped, replaced or added, at any depth, or cut text."""
    data = json.loads(json.dumps(published().to_dict()))
    for _ in range(draw(st.integers(1, 3))):
        inner = draw(st.sampled_from([data, *(each for each in data.values() if isinstance(each, dict) and each)]))
        key = draw(st.one_of(st.sampled_from(sorted(inner) or ["x"]), st.text(max_size=6), st.just("resamples")))
        if draw(st.booleans()):
            inner.pop(key, None)
        else:
            inner[key] = draw(values)
    text = json.dumps(data)
    return draw(st.one_of(st.just(text), st.integers(0, len(text)).map(lambda end: text[:end])))


@settings(max_examples=1500, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.one_of(broken_laws().map(str.encode), st.binary(max_size=200)))
def test_no_law_file_brings_a_traceback(tmp_path, content):
    path = tmp_path / "law.json"
    path.write_bytes(content)
    check(
        [
            "predict",
            "--rung",
            "0.3B",
            "--experts",
            "4",
            "--recurrence",
            "3",
            "--tokens",
            "300B",
            "--json",
            "--law",
            str(path),
        ]
    )
    check(["plan", "--flops", "5e21", "--json", "--law", str(path)])


def test_a_law_file_of_brackets_is_refused(tmp_path):
    path = tmp_path / "law.json"
    path.write_text("[" * 100_000)
    check(["plan", "--flops", "5e21", "--law", str(path)])
