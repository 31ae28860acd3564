"""Scenes served to a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.daemon import TIMEOUT

expect.set_options(timeout=1000 * TIMEOUT)

FRESH = 5000
"""Milliseconds between two looks of the page at the node."""


@contextmanager
def context(
    browser: Browser, width: int = 1600, theme: str = "light", height: int = 900
) -> Iterator[BrowserContext]:
    opened = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if theme == "dark" else "light",
    )
    opened.set_default_timeout(1000 * TIMEOUT)
    yield opened
    opened.close()


class Faults(list[str]):
    """What a page complained of: errors of scripts, refused content, requests to elsewhere."""

    def watch(self, page: Page, origin: str) -> None:
        page.on("pageerror", lambda error: self.append(f"error: {error}"))
        page.on("console", lambda said: self.extend([said.text] * (said.type == "error")))
        page.on("request", lambda asked: self.extend([asked.url] * (origin not in asked.url)))


@contextmanager
def opened(
    browser: Browser, address: str, width: int = 1600, theme: str = "light", height: int = 900
) -> Iterator[Page]:
    """The page, once it shows the node; it must have nothing to complain of."""
    faults = Faults()
    with context(browser, width, theme, height) as within:
        page = within.new_page()
        faults.watch(page, address)
        page.clock.install()
        page.goto(address)
        page.wait_for_selector("#version:not(:empty)")
        yield page
    assert not faults


def look_again(page: Page, times: int = 1) -> None:
    """Let the page's time go on until it has asked so many times more."""
    for _ in range(times):
        with page.expect_response("**/api/v1/node"):
            page.clock.run_for(FRESH)
