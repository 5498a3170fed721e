"""What the repository says about itself is true: READMEs, versions, decisions, the workflow and the Makefile."""

import re
import tomllib
from pathlib import Path

import pytest

import loopscale

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "loopscale"
PACKAGES = sorted(path.parent for path in SOURCE.glob("*/__init__.py"))
TEST = re.compile(r"`(test_\w+)\.py::(test_\w+)`")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_the_readme_of_a_package_names_only_what_is_there(package):
    text = (package / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 15
    code = "\n".join(path.read_text(encoding="utf-8") for path in package.rglob("*.py"))
    files = set(re.findall(r"`([a-z_/]+\.py)`", text))
    assert files
    assert not [name for name in files if not (package / name).exists()]
    assert not [name for name in re.findall(r"`([a-z_]+/)`", text) if not (package / name).is_dir()]
    types = set(re.findall(r"`([A-Z]\w+)`", text.partition("Main type")[2]))
    assert types
    assert not [name for name in types if not re.search(rf"^class {name}\b", code, flags=re.MULTILINE)]


def test_the_version_is_stated_once():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/loopscale/__init__.py"
    for name in ("CITATION.cff", "README.md"):
        assert not re.search(r"^\s*version\b", (ROOT / name).read_text(encoding="utf-8"), flags=re.MULTILINE), name


def test_the_newest_section_of_the_changelog_is_this_version():
    sections = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sections[0] == loopscale.__version__.partition(".dev")[0]


def test_decisions_are_numbered_and_dated():
    text = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    found = re.findall(r"^## (\d+)\. .+\n\n\*(\d{4}-\d\d-\d\d)\.\* ", text, flags=re.MULTILINE)
    assert [int(number) for number, _ in found] == list(range(1, text.count("\n## ") + 1))


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").iterdir()), ids=lambda path: path.stem)
def test_a_workflow_reads_as_yaml_pins_actions_by_commit_and_calls_what_make_offers(path):
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    offered = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    for job in workflow["jobs"].values():
        for step in job["steps"]:
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step.get("uses", "own/script@" + 40 * "0")), step
            assert set(re.findall(r"\bmake (\w+)", step.get("run", ""))) <= set(offered[1].split()), step


def test_a_release_carries_the_wheel_and_the_bill_of_materials():
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert re.search(r"make release.*gh release create \S+ dist/\*", text, flags=re.DOTALL)
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nrelease:")[2].partition("\n\n")[0]
    assert all(part in recipe for part in ("cmp dist/*.whl", "mv sbom.json dist", "SHA256SUMS"))


def test_files_that_make_names_exist():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    names = set(re.findall(r"\b(?:tests|benchmarks|tools|docs|experiments)/[\w/.-]+\.py\b", text))
    assert len(names) > 5
    assert not [name for name in names if not (ROOT / name).exists()]


def test_every_test_file_has_a_name_of_its_own():
    """pytest imports test files by name, so that two of one name cannot run together, as in ``make test-all``."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_tests_that_a_page_names_exist():
    named = {pair for page in (ROOT / "docs").rglob("*.md") for pair in TEST.findall(page.read_text(encoding="utf-8"))}
    assert len(named) > 20
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    assert not [f"{file}.py::{name}" for file, name in named if f"def {name}(" not in texts.get(file, "")]
