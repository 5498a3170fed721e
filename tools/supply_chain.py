"""Where the dependencies come from: a lock file with hashes, and a bill of materials (SBOM).

python tools/supply_chain.py lock > requirements.lock    from constraints.txt and the package index; needs the network
python tools/supply_chain.py sbom > sbom.json            of what is installed in this environment, in CycloneDX form
"""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)

ROOT = Path(__file__).resolve().parents[1]
INDEX = "https://pypi.org/simple"
WITHOUT_HASH = ("torch",)
"""Its wheel depends on the machine and on where it comes from: the CPU build is not on the package index at all."""
HEAD = """# The versions of constraints.txt with the hashes of their files on the package index, for Python 3.11.
# Without torch, whose build depends on the machine. `make HASHED=1 test` installs from here. Made by: make lock
"""


def pinned(path: Path) -> Iterator[tuple[str, str]]:
    """Yield name and version of every line of a constraints file."""
    for line in path.read_text().splitlines():
        name, equals, version = line.partition("==")
        if equals and not line.startswith("#"):
            yield name.strip(), version.strip()


def hashes(name: str, version: str) -> list[str]:
    """Return the SHA-256 of every file of a version, as the package index states them."""
    request = urllib.request.Request(f"{INDEX}/{canonicalize_name(name)}/", headers={"accept": "text/html"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        page = reply.read().decode()
    found = set()
    for link in re.findall(r'href="([^"]+)"', page):
        split = urlsplit(link)
        file = unquote(split.path.rpartition("/")[2])
        if _version(file) == version and split.fragment.startswith("sha256="):
            found.add(split.fragment.removeprefix("sha256="))
    return sorted(found)


def _version(file: str) -> str | None:
    """Return the version of a file that Python 3.11 can install on Linux or macOS; None for any other file."""
    try:
        if not file.endswith(".whl"):
            return str(parse_sdist_filename(file)[1])
        _, version, _, tags = parse_wheel_filename(file)
        fits = any(
            (tag.interpreter in ("cp311", "py3") or tag.abi == "abi3")
            and ("manylinux" in tag.platform or "macosx" in tag.platform or tag.platform == "any")
            for tag in tags
        )
        return str(version) if fits else None
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None


def lock() -> str:
    """Return the lock file; a version without any hash on the index is an error."""
    packages = [(name, version) for name, version in pinned(ROOT / "constraints.txt") if name not in WITHOUT_HASH]
    with ThreadPoolExecutor(8) as pool:
        listed = list(pool.map(lambda package: hashes(*package), packages))
    lines = []
    for (name, version), sums in zip(packages, listed, strict=True):
        if not sums:
            raise SystemExit(f"{name}=={version}: the index at {INDEX} states no hash of this version")
        lines.append(" \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{digest}" for digest in sums)]))
    return HEAD + "\n".join(lines) + "\n"


def sbom() -> dict[str, Any]:
    """Return what is installed, with versions, licences and what needs what, as CycloneDX 1.6."""
    installed = {canonicalize_name(found.metadata["Name"]): found for found in metadata.distributions()}
    components = [_component(name, found) for name, found in sorted(installed.items())]
    needs = [
        {
            "ref": _purl(name, found),
            "dependsOn": sorted(_purl(need, installed[need]) for need in _needs(found, installed)),
        }
        for name, found in sorted(installed.items())
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "components": components,
        "dependencies": needs,
    }


def _component(name: str, found: metadata.Distribution) -> dict[str, Any]:
    about = found.metadata
    licence = about.get("License-Expression") or next(
        (line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or [] if line.startswith("License ::")),
        None,
    )
    stated = {"licenses": [{"license": {"name": licence}}]} if licence else {}
    return (
        {"type": "library", "bom-ref": _purl(name, found), "name": name, "version": found.version}
        | stated
        | {"purl": _purl(name, found)}
    )


def _needs(found: metadata.Distribution, installed: dict[Any, Any]) -> set[Any]:
    names = {canonicalize_name(re.split(r"[ ;\[<>=!~(]", text, maxsplit=1)[0]) for text in found.requires or []}
    return names & set(installed)


def _purl(name: str, found: metadata.Distribution) -> str:
    return f"pkg:pypi/{name}@{found.version}"


if __name__ == "__main__":
    print(lock() if sys.argv[1:] == ["lock"] else json.dumps(sbom(), indent=1), end="")
