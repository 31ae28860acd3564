"""What the page shows of each scene, in Chromium."""

from __future__ import annotations

import http.server
import itertools
import re
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from axe_core_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, expect

from gpunode.cli import stories
from gpunode.cli.settings.demo import DemoSettings
from gpunode.export import palette
from gpunode.incidents import history
from gpunode.recorded import STORIES
from gpunode.report.document import Report
from gpunode.report.page import html
from gpunode.unread import Unknown
from tests.conftest import watching
from tests.export.page import scenes
from tests.export.page.conftest import context, look_again, opened
from tests.export.page.scenes import SHOWN, Scene
from tests.export.page.serve import served
from tests.fakes.nvml import FakeDriver

pytestmark = pytest.mark.integration

WIDTHS = {1600: 900, 1280: 800, 390: 844}
SCENES: dict[str, Callable[[], Scene]] = {
    "hang": lambda: scenes.hang(before=300, after=120),
    "starvation": lambda: scenes.starvation(120),
    "idle": lambda: scenes.idle(60),
    "slices": lambda: scenes.slices(60),
    "lost": lambda: scenes.lost(60),
    "hostile": lambda: scenes.hostile(60),
    "sixteen": lambda: scenes.hang(before=60, after=60, count=16),
}


@pytest.fixture(scope="module")
def address() -> Callable[[str], str]:
    """The address of a scene, which is played once."""
    known: dict[str, str] = {}

    def of(name: str) -> str:
        if name not in known:
            known[name] = served(SCENES[name]().stage.loop)
        return known[name]

    return of


def first(page: Page) -> str:
    """What is read first."""
    return page.locator(".finding h3").first.inner_text()


def row(page: Page, gpu: str) -> str:
    """What is said of a GPU, without what is folded."""
    label = re.compile(rf"^GPU {re.escape(gpu)}( rank \d+)?$")
    return page.locator(".gpu", has=page.get_by_role("heading", name=label)).inner_text()


@pytest.mark.parametrize(
    ("width", "theme"), [(1600, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
)
def test_a_hang_is_read_first_without_scrolling(
    browser: Browser, address: Callable[[str], str], width: int, theme: str
) -> None:
    with opened(browser, address("hang"), width, theme, WIDTHS[width]) as page:
        assert first(page) == (
            "Act now\nGPUs 0–4, 6 and 7 hang: they wait for GPU 5, "  # noqa: RUF001
            "whose process is stopped by a signal or a debugger"
        )
        finding = page.locator(".finding").first
        expect(finding.locator("code")).to_have_text("kill -CONT 41205")
        expect(finding).to_contain_text("nothing moved and nothing was launched for 2 min")
        box = finding.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < WIDTHS[width]
        assert page.title().startswith("GPUs 0–4, 6 and 7 hang")  # noqa: RUF001
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_hang_shows_who_waits_for_whom(browser: Browser, address: Callable[[str], str]) -> None:
    with opened(browser, address("hang")) as page:
        assert page.locator(".gpu").count() == 8
        waits = row(page, "2")
        assert "Hanging: waits for GPU 5" in waits
        assert "research/llama-70b-worker-0" in waits
        assert "rank 2" in waits
        assert "128 / 700 W" in waits
        assert "118 / 140 GiB" in waits
        late = row(page, "5")
        assert "Waited for: its process is stopped by a signal or a debugger" in late
        assert "holds up 7 GPUs" in late
        assert "for 2 min" in late


PAINTED = """strip => [...strip.querySelectorAll("path")]
    .map(path => [path.dataset.state, getComputedStyle(path).fill])"""


def test_a_strip_has_the_shares_and_colours_of_the_ledger(
    browser: Browser, address: Callable[[str], str]
) -> None:
    with opened(browser, address("starvation")) as page:
        strip = page.locator(".strip").first
        told = strip.get_attribute("aria-label") or ""
        assert told.startswith("Where its time went, last 10 minutes: compute")
        assert re.search(r"starved: nothing to run \d+ %", told)
        painted = strip.evaluate(PAINTED)  # at once, because the page draws it anew
        assert painted
        for state, fill in painted:
            colour = palette.STATES[state].lstrip("#")
            rgb = ", ".join(str(int(colour[at : at + 2], 16)) for at in (0, 2, 4))
            assert fill == f"rgb({rgb})"
        page.locator(".strip").first.hover()
        expect(page.locator("#tip")).to_contain_text("starved")
        expect(page.locator("#tip")).to_contain_text("W")


def test_what_the_node_is_short_of_stands_in_three_columns(
    browser: Browser, address: Callable[[str], str]
) -> None:
    with opened(browser, address("starvation")) as page:
        assert first(page) == "Time is being lost\nGPUs 0–3 are starved: storage is too slow"  # noqa: RUF001
        columns = [page.locator(f"#{name}") for name in ("compute", "io", "communication")]
        boxes = [column.bounding_box() for column in columns]
        assert [box and round(box["y"]) for box in boxes] == [boxes[0] and round(boxes[0]["y"])] * 3
        io = page.locator("#io .short")
        assert [text.split("\n")[0] for text in io.all_inner_texts()] == [
            "Time in which tasks wait for storage",
            "Busiest disk nvme0n1",
        ]
        expect(columns[2]).to_contain_text("144 of 144")
        expect(page.locator("#audit")).to_contain_text("powersave on 192 of 192 cores")
        expect(page.locator("#audit code").first).to_have_text(
            "cpupower frequency-set -g performance"
        )
        expect(page.locator("#silent")).to_have_text("All sources answer.")


def test_what_began_before_the_first_point_has_lasted_longer(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "POINTS", 13)  # two minutes
    scene = Scene(scenes.actor(0, scenes.STARVED, 290.0), scenes.actor(1, scenes.WORK))
    with opened(browser, served(scene.play(180).stage.loop)) as page:
        assert "62 % of its time · for more than 2 min" in row(page, "0")
        assert "for " not in row(page, "1"), "nothing is wrong with it"


def test_a_tape_is_named_with_how_far_it_has_come(browser: Browser) -> None:
    story = stories.Scene.of(STORIES / "hang.jsonl.gz", DemoSettings(), "2 of 5", before=300)
    for moment in story.moments:
        if moment >= 176:
            break
    with opened(browser, served(story.loop)) as page:
        expect(page.locator("#title")).to_have_text(
            "Played from a tape 2 of 5: A training job hangs, the time before it: 2 min to go."
        )
        expect(page.locator("#look")).to_contain_text("nvidia-smi calls seven GPUs busy")


def test_it_says_when_all_is_well(browser: Browser, address: Callable[[str], str]) -> None:
    with opened(browser, address("idle")) as page:
        assert first(page) == "All is well"
        expect(page.locator(".finding").first).to_contain_text("8 GPUs: 8 free.")
        assert page.title() == "gpu-h200-17"


def test_instances_of_mig_are_no_gpus(browser: Browser, address: Callable[[str], str]) -> None:
    with opened(browser, address("slices")) as page:
        expect(page.locator(".finding").first).to_contain_text("1 GPU and 7 MIG instances: ")


def test_it_shows_what_was_met_and_is_not_understood(browser: Browser) -> None:
    scene = scenes.at_work()
    kind = Unknown("kernel_line", "a line of the kernel of <i>unknown</i> form")
    scene.host.unread = (kind.seen("NVRM: GPU0 forgets"), kind.seen("NVRM: GPU0 <b>forgets</b>"))
    with opened(browser, served(scene.play(60).stage.loop)) as page:
        assert first(page) == "Nothing is known to be wrong"
        expect(page.locator(".finding").first).to_contain_text(
            "But not everything that was met is understood: see below."
        )
        unread = page.locator("#unread")
        expect(unread).to_contain_text(
            "host, kernel line: a line of the kernel of <i>unknown</i> form"
        )
        expect(unread.locator("code")).to_have_text(
            ["NVRM: GPU0 forgets", "NVRM: GPU0 <b>forgets</b>"]
        )


def test_a_lost_gpu_stays_on_the_page(browser: Browser, address: Callable[[str], str]) -> None:
    with opened(browser, address("lost")) as page:
        assert first(page).startswith("Act now\nGPU 3 does not answer: research/llama-70b")
        assert first(page).endswith("held it as rank 3")
        expect(page.locator("#inventory")).to_have_text("8 × NVIDIA H200")  # noqa: RUF001
        assert "research/llama-70b-worker-0" in row(page, "3")
        assert "Not answering" in row(page, "3")
        assert "–" in row(page, "3")  # noqa: RUF001 no held value
        assert "At work" in row(page, "2")
        expect(page.locator("#silent")).to_contain_text("gpu_activity, GPU 3: since")


def test_a_gpu_that_comes_back_opens_its_own_evidence(
    browser: Browser, address: Callable[[str], str]
) -> None:
    def without_one(route: Route) -> None:
        told = route.fetch().json()
        route.fulfill(json={**told, "gpus": told["gpus"][1:]})

    with opened(browser, address("idle")) as page:
        page.route("**/api/v1/node", without_one)
        look_again(page)
        expect(page.locator(".gpu")).to_have_count(7)
        page.unroute("**/api/v1/node")
        look_again(page)
        expect(page.locator(".gpu")).to_have_count(8)
        ids = [detail.get_attribute("id") for detail in page.locator(".detail").all()]
        assert len(set(ids)) == 8


def test_a_node_that_was_not_judged_yet_is_not_said_to_be_well(browser: Browser) -> None:
    with opened(browser, served(scenes.at_work().play(2).stage.loop)) as page:
        assert first(page) == "Nothing is known to be wrong"
        expect(page.locator(".finding").first).to_contain_text("8 GPUs: 8 not judged yet.")


def test_slices_have_numbers_of_their_own(browser: Browser, address: Callable[[str], str]) -> None:
    with opened(browser, address("slices")) as page:
        assert page.locator(".gpu").count() == 8
        assert "team-a/nb-2" in row(page, "0:2")
        assert "Free" in row(page, "0:6")


def test_sixteen_gpus_fit(browser: Browser, address: Callable[[str], str]) -> None:
    for width, height in WIDTHS.items():
        with opened(browser, address("sixteen"), width, height=height) as page:
            assert page.locator(".gpu").count() == 16
            assert "GPUs 0–4 and 6–15 hang" in first(page)  # noqa: RUF001
            assert page.evaluate("document.documentElement.scrollWidth") <= width


MADE = "body :is(img, script, iframe, style, b[onclick], svg[onload], a[href^=javascript])"
"""Elements that names would be if they were markup."""


def test_hostile_names_stay_text(browser: Browser, address: Callable[[str], str]) -> None:
    for width, height in WIDTHS.items():
        with opened(browser, address("hostile"), width, height=height) as page:
            for button in page.locator(".more").all():
                button.click()
            look_again(page)
            text = page.locator("body").inner_text()
            for name in SHOWN:
                assert name in text
            assert "owned" not in page.title().split(" · ")[0]
            assert page.locator(MADE).count() == 0
            assert page.evaluate("document.documentElement.scrollWidth") <= width


MARKUP = """async () => {
    const blocked = [];
    const both = new Promise(resolve =>
        document.addEventListener("securitypolicyviolation", event => {
            if (blocked.push(event.effectiveDirective) === 2) resolve();
        }));
    document.body.insertAdjacentHTML("beforeend", "<p onclick='document.title = `ran`'>name</p>");
    const script = document.createElement("script");
    script.textContent = "document.title = 'ran'";
    document.body.append(script);
    document.body.lastElementChild.previousElementSibling.click();
    await both;
    return [blocked.sort(), document.title];
}"""


def test_a_name_that_became_markup_would_run_nothing(
    browser: Browser, address: Callable[[str], str]
) -> None:
    with context(browser) as within:
        page = within.new_page()
        page.goto(address("hostile"))
        page.wait_for_selector("#version:not(:empty)")
        blocked, title = page.evaluate(MARKUP)
    assert blocked == ["script-src-attr", "script-src-elem"]
    assert title != "ran"


LOOKS = ((1280, "light"), (390, "dark"))


def test_it_is_accessible(browser: Browser, address: Callable[[str], str]) -> None:
    for (width, theme), name in zip(itertools.cycle(LOOKS), SCENES, strict=False):
        with opened(browser, address(name), width, theme, WIDTHS[width]) as page:
            page.locator(".more").first.click()
            found = Axe().run(page)["violations"]
        assert [(name, one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []


def test_a_keyboard_opens_why_and_it_stays_open(
    browser: Browser, address: Callable[[str], str]
) -> None:
    with opened(browser, address("hang")) as page:
        page.keyboard.press("Tab")
        focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
        assert focused == "Why, and what to do: GPU 0"
        page.keyboard.press("Enter")
        detail = page.locator(".detail").first
        expect(detail).to_contain_text('gpunode_gpu_blocked_streak_seconds{gpu="0"')
        expect(detail).to_contain_text("kill -CONT 41205")
        look_again(page)
        assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
        expect(detail).to_be_visible()


def test_it_follows_what_happens(browser: Browser) -> None:
    scene = scenes.at_work()
    scene.play(120)
    with opened(browser, served(scene.stage.loop)) as page:
        assert first(page) == "All is well"
        points = len(page.locator(".strip path").first.get_attribute("d") or "")
        for one in scene.actors[:2]:
            scenes.act(one, scenes.STARVED, 290.0)
        scene.play(60)
        look_again(page, times=4)
        finding = page.locator(".finding h3").first
        expect(finding).to_contain_text("GPUs 0 and 1 are held with nothing to run")
        page.wait_for_function(
            "points => document.querySelector('.strip path').getAttribute('d').length > points",
            arg=points,
        )
        for one in scene.actors[:2]:
            scenes.act(one, scenes.WORK, 640.0)
        scene.play(60)
        look_again(page)
        expect(finding).to_have_text("All is well")


def test_a_hidden_page_does_not_ask(browser: Browser, address: Callable[[str], str]) -> None:
    with context(browser) as within:
        page = within.new_page()
        page.add_init_script(
            "window.away = false;"
            "Object.defineProperty(document, 'hidden', { get: () => window.away });"
        )
        page.clock.install()
        page.goto(address("idle"))
        page.wait_for_selector("#version:not(:empty)")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.evaluate("window.away = true")
        page.clock.run_for(60_000)
        assert asked == []
        page.evaluate("window.away = false")
        with page.expect_response("**/api/v1/node"):
            page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def test_it_says_since_when_the_daemon_is_gone(browser: Browser, fake: FakeDriver) -> None:
    fake.write("gpus 2\n")
    with watching(fake) as running, context(browser) as within:
        page = within.new_page()
        page.goto(f"http://127.0.0.1:{running.port}/")
        page.wait_for_selector(".gpu")
        expect(page.locator("#stale")).to_be_hidden()
        running.process.terminate()
        expect(page.locator("#stale")).to_be_visible()
        said = page.locator("#stale").inner_text()
        assert re.match(r"gpunode has not answered since \d", said)
        assert page.locator("#stale").get_attribute("role") == "alert"
        expect(page.locator("#updated")).to_have_text("Not connected")
        assert page.title().startswith("Not connected"), "a tab must not tell what was"


def test_without_scripts_it_promises_nothing(
    browser: Browser, address: Callable[[str], str]
) -> None:
    with closing(browser.new_context(java_script_enabled=False)) as within:
        page = within.new_page()
        page.goto(address("hang"))
        assert "needs JavaScript" in page.inner_text("body")
        assert "Connecting" not in page.inner_text("body")


def test_a_node_without_gpus_says_so(browser: Browser, fake: FakeDriver) -> None:
    fake.write("gpus 0\n")
    with watching(fake, "--dcgm.address=") as running, context(browser) as within:
        page = within.new_page()
        page.goto(f"http://127.0.0.1:{running.port}/")
        page.wait_for_selector("#version:not(:empty)")
        assert first(page) == "Worth knowing\nNo GPU has been seen yet"
        expect(page.locator(".finding").first).to_contain_text("gpunode doctor")


class Proxy(http.server.BaseHTTPRequestHandler):
    """What ``kubectl proxy`` or an ingress does: the page is below a path."""

    below = "/api/v1/namespaces/gpunode/services/gpunode:9816/proxy/"
    to = ""

    def do_GET(self) -> None:
        if not self.path.startswith(self.below):
            self.send_error(404)
            return
        with urllib.request.urlopen(self.to + self.path.removeprefix(self.below)) as answer:
            content = answer.read()
            self.send_response(200)
            self.send_header("content-type", answer.headers["content-type"])
            policy = "content-security-policy"
            self.send_header(policy, answer.headers[policy] or "")
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def proxied(address: Callable[[str], str]) -> Iterator[str]:
    handler = type("To", (Proxy,), {"to": address("idle")})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}{Proxy.below}"
        server.shutdown()


def test_it_works_below_any_path(browser: Browser, proxied: str) -> None:
    with opened(browser, proxied) as page:
        assert first(page) == "All is well"
        assert page.locator(".gpu").count() == 8


def test_a_report_is_printed_on_white(browser: Browser) -> None:
    report = Report("GPU capacity", "", "", 0, "", None, "", (), ())
    with context(browser, theme="dark") as within:
        page = within.new_page()
        page.set_content(html(report))
        paper = "getComputedStyle(document.body).backgroundColor"
        assert page.evaluate(paper) == "rgb(21, 23, 26)"
        page.emulate_media(media="print")
        assert page.evaluate(paper) == "rgb(255, 255, 255)"
