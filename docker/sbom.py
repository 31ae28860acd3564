"""Writes what an image contains, as CycloneDX: ``sbom.py PACKAGES BASE``.

PACKAGES is a folder of Python packages, BASE the root of a Debian or distroless image. It fails
where BASE does not say that it has the C library or Python, for then it may not say the rest
either, or which release it is of, for scanners then find no vulnerability of its packages.
https://cyclonedx.org/docs/1.6/json/
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import HeaderParser
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import quote

EVERY_BASE = {"the C library": r"libc6", "Python": r"(lib)?python3\.\d+(-minimal|-stdlib)?"}
"""The packages of Debian without which nothing here runs."""

SOURCE = re.compile(r"(\S+)(?: \((\S+)\))?")
"""https://www.debian.org/doc/debian-policy/ch-controlfields.html#source"""


def component(
    kind: str, name: str, version: str, licence: str = "", **qualifiers: str
) -> dict[str, object]:
    """A package with its address in the form https://github.com/package-url/purl-spec."""
    more = "&".join(f"{key}={quote(value, safe='')}" for key, value in sorted(qualifiers.items()))
    purl = f"pkg:{kind}/{quote(name)}@{quote(version, safe='')}{more and '?'}{more}"
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


@dataclass(frozen=True, slots=True)
class Release:
    """A distribution, such as debian, and its version, such as 13; empty where it says none."""

    name: str
    version: str

    def component(self) -> dict[str, object]:
        """The distribution itself."""
        kind, named = "operating-system", f"{self.name}-{self.version}"
        return {"type": kind, "bom-ref": named, "name": self.name, "version": self.version}


def release(root: Path) -> Release:
    """Which release a root is of.

    https://www.freedesktop.org/software/systemd/man/latest/os-release.html
    """
    path = root / "usr/lib/os-release"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    said = dict(re.findall(r'^(ID|VERSION_ID)="?([^"\n]*)"?$', text, re.MULTILINE))
    return Release(said.get("ID", ""), said.get("VERSION_ID", ""))


def debian_packages(root: Path, of: Release) -> Iterator[dict[str, object]]:
    """Every package that dpkg knows of; distroless images have a file for each.

    Vulnerabilities are listed by the release and by the source package, which ``distro`` and
    ``upstream`` name: https://github.com/anchore/grype/blob/main/grype/pkg/purl_provider.go
    """
    for path in (root / "var/lib/dpkg/status", *sorted(root.glob("var/lib/dpkg/status.d/*"))):
        if not path.is_file() or path.suffix == ".md5sums":
            continue
        for paragraph in path.read_text(encoding="utf-8").split("\n\n"):
            about = HeaderParser().parsestr(paragraph)
            if about["Package"]:
                qualifiers = {"distro": f"{of.name}-{of.version}"}
                # A name, and a version in brackets where it is not that of the package.
                if found := SOURCE.fullmatch(about["Source"] or ""):
                    qualifiers["upstream"] = "@".join(filter(None, found.groups()))
                name, version = about["Package"], about["Version"]
                yield component(f"deb/{of.name}", name, version, **qualifiers)


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
    of = release(base)
    of_base = list(debian_packages(base, of))
    if lacking := without(of_base):
        raise ValueError(
            f"{' and '.join(lacking)}: not in {base}/var/lib/dpkg; "
            "BASE must be an image of Debian or distroless that lists its packages"
        )
    if not (of.name and of.version):
        raise ValueError(
            f"the release: not in {base}/usr/lib/os-release, so that no scanner could tell which "
            "vulnerabilities its packages have"
        )
    components = [of.component(), *python_packages(packages), *of_base]
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
        "components": sorted(components, key=lambda found: str(found["bom-ref"])),
    }


if __name__ == "__main__":
    try:
        document = bom(Path(sys.argv[1]), Path(sys.argv[2]))
    except ValueError as error:
        sys.exit(f"sbom.py: {error}")
    json.dump(document, sys.stdout, indent=1)
