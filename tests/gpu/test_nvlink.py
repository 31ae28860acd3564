"""NVLinks that do not answer for everything: through the fake driver to the exposition."""

from __future__ import annotations

from tests.conftest import Series, by_label, scrape, until, values, watching
from tests.fakes.nvml import FakeDriver

NOT_SUPPORTED = 3
SPEED, STATE, ERRORS = 164, 165, (161, 162, 163)


def down(*links: int) -> str:
    """Links that are down, and answer for their state alone, as on an H100 NVL."""
    return "".join(
        f"gpu 0 field {STATE} {link} 0\n"
        + "".join(f"gpu 0 field {n} {link} fail {NOT_SUPPORTED}\n" for n in (SPEED, *ERRORS))
        for link in links
    )


def errors(series: Series) -> dict[str, float]:
    return by_label(series, "gpunode_gpu_nvlink_errors_total", "kind")


def test_links_that_were_down_are_read_in_full_once_they_are_up(fake: FakeDriver) -> None:
    fake.write(down(*range(18)))
    with watching(fake, "--gpu.nvlink-interval=1") as daemon:
        until(lambda: values(scrape(daemon), "gpunode_gpu_nvlink_up") == [0] * 18)
        assert errors(scrape(daemon)) == {}
        fake.write("gpu 0 field 161 3 900\n")
        until(lambda: errors(scrape(daemon)).get("replay") == 900)
        series = scrape(daemon)
    (speed,) = values(series, "gpunode_gpu_nvlink_speed_bytes_per_second")
    assert speed == 18 * 26562e6


def test_links_that_are_not_there_hide_no_error_of_the_others(fake: FakeDriver) -> None:
    fake.write(down(*range(6)) + "gpu 0 field 161 7 5\n")
    with watching(fake, "--gpu.nvlink-interval=1") as daemon:
        until(lambda: errors(scrape(daemon)).get("replay") == 5)
        fake.write(down(*range(6)) + f"gpu 0 field 161 7 fail {NOT_SUPPORTED}\n")
        until(lambda: "replay" not in errors(scrape(daemon)))
        assert sum(values(scrape(daemon), "gpunode_gpu_nvlink_up")) == 12
