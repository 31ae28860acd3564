"""Writes what an image contains, as CycloneDX: ``sbom.py PACKAGES BASE``.

PACKAGES is a folder of Python packages, BASE the root of a Debian or distroless image. It fails
where BASE does not say that it has the C library or Python: then it may not say the rest either.
https://cyclonedx.org/docs/1.6/json/
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from email.parser import HeaderParser
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import quote

EVERY_BASE = {"the C library": r"libc6", "Python": r"(lib)?python3\.\d+(-minimal|-stdlib)?"}
"""The packages of Debian without which nothing here runs."""


def component(kind: str, name: str, version: str, licence: str = "") -> dict[str, object]:
    """A package with its address in the form https://github.com/package-url/purl-spec."""
    purl = f"pkg:{kind}/{quote(name)}@{quote(version, safe='')}"
    found: dict[str, object] = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
    }
    if licence:
        found["licenses"] = [{"license": {"name": licence}}]
    return found


def python_packages(folder: Path) -> Iterator[dict[str, object]]:
    """Every distribution in a folder."""
    for package in distributions(path=[str(folder)]):
        about = package.metadata
        licence = about.get("License-Expression") or about.get("License") or ""
        name = about["Name"].lower().replace("_", "-")
        yield component("pypi", name, package.version, licence.partition("\n")[0])


def debian_packages(root: Path) -> Iterator[dict[str, object]]:
    """Every package that dpkg knows of; distroless images have a file for each."""
    for path in (root / "var/lib/dpkg/status", *sorted(root.glob("var/lib/dpkg/status.d/*"))):
        if not path.is_file() or path.suffix == ".md5sums":
            continue
        for paragraph in path.read_text(encoding="utf-8").split("\n\n"):
            about = HeaderParser().parsestr(paragraph)
            if about["Package"]:
                yield component("deb/debian", about["Package"], about["Version"])


def version(folder: Path) -> str:
    """The version of gpunode itself, which is there without metadata."""
    text = (folder / "gpunode/__init__.py").read_text(encoding="utf-8")
    return text.split('__version__ = "')[1].partition('"')[0]


def without(found: list[dict[str, object]]) -> list[str]:
    """What every base has, and this one does not name."""
    names = [str(each["name"]) for each in found]
    return [
        what
        for what, pattern in EVERY_BASE.items()
        if not any(re.fullmatch(pattern, name) for name in names)
    ]


def bom(packages: Path, base: Path) -> dict[str, object]:
    """The whole document; without the time, so that the same build writes the same.

    Raises ``ValueError`` where the base does not say what it consists of.
    """
    of_base = list(debian_packages(base))
    if lacking := without(of_base):
        raise ValueError(
            f"{' and '.join(lacking)}: not in {base}/var/lib/dpkg; "
            "BASE must be an image of Debian or distroless that lists its packages"
        )
    components = [*python_packages(packages), *of_base]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                **component("pypi", "gpunode", version(packages), "Apache-2.0"),
                "type": "application",
            }
        },
        "components": sorted(components, key=lambda found: str(found["purl"])),
    }


if __name__ == "__main__":
    try:
        document = bom(Path(sys.argv[1]), Path(sys.argv[2]))
    except ValueError as error:
        sys.exit(f"sbom.py: {error}")
    json.dump(document, sys.stdout, indent=1)
