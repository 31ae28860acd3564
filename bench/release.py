"""A release: whether all of it is the same each time that it is made, and what that takes."""

from __future__ import annotations

import resource
import tempfile
from pathlib import Path

from bench.report import Report, Result, machine
from tests.docker import container
from tests.packaging import twice


def release() -> Report:
    """All of a release, made twice of a copy of this checkout, and the image through a registry."""
    with tempfile.TemporaryDirectory(prefix="gpunode-release-") as name:
        folder = Path(name)
        clone = twice.cloned(folder / "clone")
        sums = [twice.files(clone, folder / each) for each in ("first", "again")]
        list(container.bases())  # which are kept
        before = _processors()
        digests = list(twice.images(clone))
        used = _processors() - before
        with twice.registry(folder / "log") as registry:
            address = f"{registry}/gpunode:{twice.VERSION}"
            index = clone / "dist/image/index"
            kept = twice.through_registry(index, address, folder / "pulled")
    built = [each["index.digest"] for each in digests]
    details = [
        line
        for made, image in zip(sums, digests, strict=True)
        for line in (*made.splitlines(), *(f"{one}  {of}" for of, one in image.items()), "")
    ]
    return Report(
        "A release, made twice",
        machine(),
        "A version in a copy of this checkout, made twice by the commands of the workflow; the "
        "image for one architecture, from Debian's packages, which are kept between builds, with "
        "buildah.",
        [
            _same("two makes of wheel, sdist, chart and archive", sums),
            _same("two builds of the image", built),
            _same("the image as it was built and as a registry has it", [built[0], kept]),
            Result("CPU time of two builds of the image", f"{used:.0f} s"),
        ],
        [*details, f"{kept}  in the registry"],
    )


def _same(what: str, made: list[str]) -> Result:
    different = len(set(made))
    return Result(f"digests of {what}", str(different), "1", different == 1)


def _processors() -> float:
    """Seconds that programs which we ran have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
