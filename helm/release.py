"""What a release consists of, made the same each time that it is made: ``python -m helm.release``.

It needs git, Helm and what ``docker/release.txt`` pins. Everything has the time of the commit.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timezone
from hashlib import sha256
from pathlib import Path

REPOSITORY = "https://github.com/gpunode/gpunode"
RAW = "https://raw.githubusercontent.com/gpunode/gpunode"
NUMBER = "(?:0|[1-9][0-9]*)"
TAG = re.compile(rf"v({NUMBER}[.]{NUMBER}[.]{NUMBER})")
"""The three numbers of https://semver.org, as Helm asks for them."""

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
KUBERNETES = "--kube-version=1.31.0"
"""The oldest version that knows all that a release's manifests use; the chart asks the cluster."""

PROFILES = ("restricted", "node", "pods", "jobs", "network")

PROGRAM = "exporter/gpunode/__init__.py"
CHART = "helm/gpunode/Chart.yaml"
CHANGELOG = "CHANGELOG.md"
README_OF_CHART = "helm/gpunode/README.md"
TESTED = "docs/kubernetes.md"
UNRELEASED = "## [Unreleased]\n"
IMAGE = r"ghcr\.io/gpunode/gpunode:(\S+)"
UNTIL = re.compile(r"<!-- until the first release -->\n.*?<!-- end -->\n+", re.DOTALL)
"""What a document says while there is nothing to install."""

BOUND = ("exporter", "alerts", "dashboards", "helm", "README.md", "pyproject.toml")
"""What is published, or what that is made of."""


class Refused(Exception):
    """Why there is no release, in words for who releases."""


# What a version is called in


def named(root: Path) -> dict[str, str]:
    """The version that each file names, by the file; empty where it names none."""
    chart = _read(root, CHART)
    released, _ = _released(root)
    return {
        PROGRAM: _first(r'^__version__ = "(.+)"$', _read(root, PROGRAM)),
        f"version in {CHART}": _first(r"^version: (\S+)$", chart),
        f"appVersion in {CHART}": _first(r"^appVersion: (\S+)$", chart),
        f"the latest release in {CHANGELOG}": released,
        f"image in {README_OF_CHART}": _first(IMAGE, _read(root, README_OF_CHART)),
    }


def check(root: Path, tag: str) -> str:
    """The version of a tag. Raises ``Refused`` where a file of the checkout names another."""
    found = TAG.fullmatch(tag)
    if not found:
        raise Refused(f"{tag}: a release has a tag like v1.2.3")
    wrong = [
        f"{place}: {version or 'none'}"
        for place, version in named(root).items()
        if version != found[1]
    ]
    _, heading, after = _read(root, CHANGELOG).partition(f"\n{UNRELEASED}")
    if not heading:
        wrong.append(f"{CHANGELOG}: it has no line {UNRELEASED.strip()}")
    elif after.partition("\n## ")[0].strip():
        wrong.append(f"{CHANGELOG}: there are entries under Unreleased")
    _, day = _released(root)
    try:
        date.fromisoformat(day)
    except ValueError:
        wrong.append(f"{CHANGELOG}: {day or 'none'} is the day of no release")
    if not wrong and not notes(root, found[1]).strip():
        wrong.append(f"{CHANGELOG}: it says nothing of {found[1]}")
    wrong += [
        f"{path.relative_to(root)}: it says that there is no release"
        for path in _documents(root)
        if UNTIL.search(path.read_text(encoding="utf-8"))
    ]
    if wrong:
        raise Refused(f"{tag} does not agree with the files: {'; '.join(wrong)}")
    return found[1]


def prepare(root: Path, version: str, day: str) -> None:
    """Write a version into every file that names it. Raises ``Refused`` for one that cannot be."""
    if not TAG.fullmatch(f"v{version}"):
        raise Refused(f"{version}: a version has three numbers, like 1.2.3")
    changes = _read(root, CHANGELOG)
    if f"## [{version}]" in changes:
        raise Refused(f"{CHANGELOG} has a version {version} already")
    _rewrite(root / PROGRAM, r'^__version__ = ".+"$', f'__version__ = "{version}"')
    _rewrite(root / CHART, r"^(version|appVersion): \S+$", rf"\1: {version}")
    heading = rf"{re.escape(UNRELEASED)}(\nTo become \S+\n)?"
    _rewrite(root / CHANGELOG, heading, f"{UNRELEASED}\n## [{version}] - {day}\n")
    _rewrite(root / README_OF_CHART, IMAGE, f"ghcr.io/gpunode/gpunode:{version}")
    for path in _documents(root):
        path.write_text(UNTIL.sub("", path.read_text(encoding="utf-8")), encoding="utf-8")


def notes(root: Path, version: str) -> str:
    """What the changelog says of a version."""
    _, _, after = _read(root, CHANGELOG).partition(f"## [{version}] - ")
    return after.partition("\n")[2].partition("\n## ")[0].strip() + "\n"


def tested(root: Path, version: str) -> str:
    """Which versions of what else a version was run with; its links lead there from anywhere."""
    _, _, after = _read(root, TESTED).partition("\n## How this is tested\n")

    def absolute(found: re.Match[str]) -> str:
        path = os.path.normpath(f"{os.path.dirname(TESTED)}/{found[1]}")
        return f"]({REPOSITORY}/blob/v{version}/{path})"

    said = re.sub(r"\]\((?!https?:)([^)]+)\)", absolute, after.partition("\n## ")[0].strip())
    return f"### How this was tested\n\n{said}\n"


def _documents(root: Path) -> Iterator[Path]:
    yield from sorted(
        path
        for pattern in ("README.md", README_OF_CHART, "docs/*.md")
        for path in root.glob(pattern)
    )


def _read(root: Path, name: str) -> str:
    return (root / name).read_text(encoding="utf-8")


def _released(root: Path) -> tuple[str, str]:
    """The version and the day of the latest release in the changelog; empty without one."""
    heading = r"^## \[(\d\S*)\] - (\d{4}-\d\d-\d\d)$"
    found = re.search(heading, _read(root, CHANGELOG), re.MULTILINE)
    return (found[1], found[2]) if found else ("", "")


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1] if found else ""


def _rewrite(path: Path, pattern: str, to: str) -> None:
    text, times = re.subn(pattern, to, path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if not times:
        raise Refused(f"{path}: nothing is like {pattern}")
    path.write_text(text, encoding="utf-8")


# What is made of a tag


@dataclass(frozen=True, slots=True)
class Tree:
    """The files of a tag, whose links lead to the files of the same tag."""

    root: Path
    version: str
    epoch: int
    """When the commit was made, in seconds since 1970."""


def extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Unpack data and nothing else; Python before 3.11.4, as in Debian 12, has no filter for it.

    https://docs.python.org/3/library/tarfile.html#extraction-filters
    """
    if hasattr(tarfile, "data_filter"):
        archive.extraction_filter = tarfile.data_filter
    archive.extractall(folder)  # noqa: S202 of this repository


def tree(repository: Path, tag: str, folder: Path) -> Tree:
    """Take the files of a tag. Raises ``Refused`` where they are not of its version."""
    archive = _run("git", "archive", "--format=tar", tag, within=repository)
    folder.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        extract(files, folder)
    version = check(folder, tag)
    epoch = int(_run("git", "log", "-1", "--format=%ct", tag, within=repository))
    for path in _files(folder, BOUND):
        before = path.read_bytes()
        after = before
        for place in (f"{REPOSITORY}/blob", f"{REPOSITORY}/tree", RAW):
            after = after.replace(f"{place}/main/".encode(), f"{place}/{tag}/".encode())
        if after != before:
            path.write_bytes(after)
        os.utime(path, (epoch, epoch))
    return Tree(folder, version, epoch)


def python(made: Tree, folder: Path) -> None:
    """The wheel and the sdist."""
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder.absolute())]
    _run(*build, within=made.root, SOURCE_DATE_EPOCH=str(made.epoch))


def chart(made: Tree, digest: str, folder: Path) -> Path:
    """The chart, which pulls the image of a digest."""
    if not DIGEST.fullmatch(digest):
        raise Refused(f"{digest}: a digest is sha256: and 64 hexadecimal digits")
    with tempfile.TemporaryDirectory() as work:
        copy = Path(work) / "gpunode"
        shutil.copytree(made.root / "helm/gpunode", copy)
        shutil.copy(made.root / "LICENSE", copy)
        _rewrite(copy / "values.yaml", r'^  digest: ""$', f"  digest: {digest}")
        table = r"^(\| `image[.]digest` \| )`\"\"`"
        _rewrite(copy / "README.md", table, r"\1that of this release")
        for name in ("README.md", "values.yaml", "values.schema.json"):
            here = f"{REPOSITORY}/blob/v{made.version}/"
            _rewrite(copy / name, r"\]\(\.\./\.\./", f"]({here}")
        image = f"ghcr.io/gpunode/gpunode@{digest}"
        with (copy / "Chart.yaml").open("a") as about:
            about.write(f"  artifacthub.io/images: |\n    - name: gpunode\n      image: {image}\n")
        ignored = {".helmignore", "ci"}
        paths = [path for path in _files(copy) if path.relative_to(copy).parts[0] not in ignored]
        contents = {f"gpunode/{path.relative_to(copy)}": path.read_bytes() for path in paths}
    return _packed(folder / f"gpunode-{made.version}.tgz", contents, made.epoch)


def rules(made: Tree, chart: Path, folder: Path) -> Path:
    """The rules, the dashboards, and the objects of each profile, which need no CRD."""
    name = f"gpunode-{made.version}-rules"
    alerts = made.root / "dist/alerts"
    write = (sys.executable, "-m", "gpunode", "rules", f"--into={alerts}")
    _run(*write, within=made.root, PYTHONPATH=str(made.root / "exporter"))
    parts = {
        "alerts/rules": sorted((alerts / "rules").iterdir()),
        "alerts": [alerts / "alertmanager.yaml"],
        "dashboards": sorted((made.root / "dashboards/json").glob("*.json")),
        ".": [made.root / "LICENSE"],
    }
    contents = {
        os.path.normpath(f"{name}/{part}/{path.name}"): path.read_bytes()
        for part, paths in parts.items()
        for path in paths
    }
    for profile in PROFILES:
        options = ("--namespace=monitoring", "--skip-tests", f"--set=profile={profile}", KUBERNETES)
        off = ("monitor", "rules", "dashboards")
        without = [f"--set={each}.enabled=false" for each in off]
        helm = ("helm", "template", "gpunode", str(chart.absolute()), *options, *without)
        contents[f"{name}/kubernetes/{profile}.yaml"] = _run(*helm, within=made.root)
    return _packed(folder / f"{name}.tar.gz", contents, made.epoch)


def sums(folder: Path) -> str:
    """The SHA-256 of every file in a folder, as ``sha256sum`` writes it once all lie in one."""
    paths = [path for path in _files(folder) if path.name != "SHA256SUMS"]
    return "".join(f"{sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in paths)


def _files(root: Path, parts: tuple[str, ...] = (".",)) -> Iterator[Path]:
    """Every file in some parts of a folder, in the order of names."""
    for part in parts:
        at = root / part
        found = [at] if at.is_file() else at.rglob("*")
        yield from sorted(path for path in found if path.is_file())


def _packed(path: Path, contents: dict[str, bytes], epoch: int) -> Path:
    """An archive that says nothing of the machine on which it is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        path.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for name, content in sorted(contents.items()):
            about = tarfile.TarInfo(name)
            about.size, about.mtime, about.mode = len(content), epoch, 0o644
            archive.addfile(about, io.BytesIO(content))
    return path


def _run(*command: str, within: Path, **environment: str) -> bytes:
    """What a program prints. Raises ``Refused`` where it fails."""
    try:
        ran = subprocess.run(  # noqa: S603 our own commands
            command, cwd=within, env={**os.environ, **environment}, capture_output=True, check=False
        )
    except FileNotFoundError as error:
        raise Refused(f"{command[0]} is not here") from error
    if ran.returncode:
        raise Refused(f"{' '.join(command[:3])}: {ran.stderr.decode(errors='replace').strip()}")
    return ran.stdout


# The command


def main(arguments: list[str] | None = None) -> None:
    """Check, prepare or make a release; exit 1 with the reason where there is none."""
    parser = argparse.ArgumentParser(prog="python -m helm.release", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (_, does, options) in COMMANDS.items():
        command = commands.add_parser(name, help=does, description=does)
        for option in options:
            command.add_argument(option)
    given = parser.parse_args(arguments)
    try:
        COMMANDS[given.command][0](given)
    except Refused as why:
        print(f"release: {why}", file=sys.stderr)  # noqa: T201
        sys.exit(1)


def _check(given: argparse.Namespace) -> None:
    check(Path(), given.tag)


def _prepare(given: argparse.Namespace) -> None:
    prepare(Path(), given.version, datetime.now(timezone.utc).date().isoformat())


def _notes(given: argparse.Namespace) -> None:
    version = check(Path(), given.tag)
    sys.stdout.write(f"{notes(Path(), version)}\n{tested(Path(), version)}")


def _tree(given: argparse.Namespace) -> None:
    tree(Path(), given.tag, Path(given.folder))


def _files_of(given: argparse.Namespace) -> None:
    folder = Path(given.folder)
    with tempfile.TemporaryDirectory() as work:
        made = tree(Path(), given.tag, Path(work) / "tree")
        python(made, folder / "python")
        rules(made, chart(made, given.digest, folder / "chart"), folder)
    (folder / "SHA256SUMS").write_text(sums(folder))


COMMANDS: dict[str, tuple[Callable[[argparse.Namespace], None], str, tuple[str, ...]]] = {
    "check": (_check, "refuse a tag with which a file does not agree", ("tag",)),
    "prepare": (_prepare, "write a version into every file that names it", ("version",)),
    "notes": (_notes, "what changed in the version of a tag, and what it ran with", ("tag",)),
    "tree": (_tree, "the files of a tag, with links to the same tag", ("tag", "folder")),
    "files": (
        _files_of,
        "wheel, sdist, chart and archive of a tag; the chart pulls the image of a digest",
        ("tag", "digest", "folder"),
    ),
}


if __name__ == "__main__":
    main()
