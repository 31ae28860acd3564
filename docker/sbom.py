"""Writes what an image contains, as CycloneDX: ``sbom.py PACKAGES BASE``.

PACKAGES is a folder of Python packages, BASE the root of a Debian or distroless image.
https://cyclonedx.org/docs/1.6/json/
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from email.parser import HeaderParser
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import quote


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


def bom(packages: Path, base: Path) -> dict[str, object]:
    """The whole document; without the time, so that the same build writes the same."""
    components = [*python_packages(packages), *debian_packages(base)]
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
    json.dump(bom(Path(sys.argv[1]), Path(sys.argv[2])), sys.stdout, indent=1)
