"""The report in a browser: filters, search, anchors, and that nothing is asked of a network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from claims.harness import paths
from claims.harness.ledger import load_ledger
from claims.report.merging import merge
from claims.report.page import Links, html
from claims.report.pictures import all_pictures
from claims.report.stored import of_data
from small_results import entry, ledger, record, results, run

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SCRIPT = "<script>document.title = 'broken'</script><img src=x onerror=\"document.title='broken'\">"
RIGHT_TO_LEFT = "זה \u202e לא נכון <b>"
# Seven claims of two sections, and a thousand more.
RUNS = [
    run("history-free", section="1-recurrence", records=[record(device="cuda")]),
    run("softmax", "holds"),
    run("false", "refuted", reason=RIGHT_TO_LEFT),
    run("unsettled", "open", reason="the weight decay"),
    run("elsewhere", "not run", records=[], reason="needs a CUDA GPU"),
    run("red", "failed", message=SCRIPT + "m" * 20_000, expected_verdict="exact"),
    run("long", statement=f"A sentence without an end {'and so on ' * 200}"),
    *(run(f"c{i}") for i in range(1000)),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a thousand claims with everything that could break a page, and all pictures."""
    known = ledger(
        *(
            entry(each["claim"], section=each["section"], statement=each["statement"],
                  kind="arithmetic" if each["claim"] == "softmax" else "exact")
            for each in RUNS
        )
    )  # fmt: skip
    merged = merge([of_data(results(*RUNS), f"{SCRIPT}.json")], known)
    path = tmp_path_factory.mktemp("report") / "report.html"
    text = html(merged, all_pictures(load_ledger(paths.LEDGER)), Links("."))
    assert len(text.encode()) < 5_000_000
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium by Playwright. Skips where one of the two is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    with playwright.sync_playwright() as started:
        try:
            launched = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"needs a browser, one of {', '.join(BROWSERS)}: {error.message[:80]}")
        yield launched
        launched.close()


PATIENCE = 300_000  # milliseconds: other work may keep all cores busy


class Open:
    """The report in a window, what it asked for, and what its console said."""

    def __init__(self, browser: Any, report: Path, width: int, anchor: str = "") -> None:
        self.asked: list[str] = []
        self.said: list[str] = []
        self.page = browser.new_page(viewport={"width": width, "height": 900})
        self.page.set_default_timeout(PATIENCE)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.goto(report.as_uri() + anchor)

    def shown(self) -> list[str]:
        """The ids of the claims that are not filtered away, from the top."""
        found: list[str] = self.page.eval_on_selector_all(
            "details.claim:not([hidden])", "all => all.map(each => each.id)"
        )
        return found


DESKTOP, PHONE = 1280, 390  # pixels


@pytest.fixture
def opened(request: pytest.FixtureRequest, browser: Any, report: Path) -> Iterator[Open]:
    window = Open(browser, report, getattr(request, "param", DESKTOP))
    yield window
    assert window.asked == [report.as_uri()]
    assert window.said == []
    assert "broken" not in window.page.title()
    window.page.close()


@pytest.mark.parametrize("opened", [DESKTOP, PHONE], indirect=True)
def test_nothing_is_wider_than_the_window(opened: Open) -> None:
    opened.page.eval_on_selector_all("details", "all => all.forEach(each => each.open = true)")
    wide, window = opened.page.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert wide == window


@pytest.mark.parametrize("opened", [PHONE], indirect=True)
def test_what_is_wider_than_the_window_is_reached_by_the_keyboard(opened: Open) -> None:
    page = opened.page
    page.locator("#softmax > summary").click()
    page.wait_for_selector("#softmax .scroll[tabindex='0']")
    unreached = page.eval_on_selector_all(
        "section > .scroll, figure > .scroll, details[open] .scroll",
        "all => all.filter(each => each.scrollWidth > each.clientWidth && each.tabIndex !== 0)"
        ".length"
    )
    assert unreached == 0
    page.set_viewport_size({"width": 2000, "height": 900})
    page.wait_for_selector("#softmax .scroll:not([tabindex])")


@pytest.mark.parametrize("opened", [DESKTOP, PHONE], indirect=True)
def test_filters_and_search_show_what_is_asked_for(opened: Open) -> None:
    page = opened.page
    everything = opened.shown()
    assert len(everything) == len(RUNS)
    page.get_by_label("Search").fill("CLAIMS WEIGHT decay")
    assert opened.shown() == ["unsettled"]
    assert page.locator("#shown").inner_text() == f"1 of {len(RUNS)} claims are shown."
    page.get_by_role("button", name="Show all").click()
    page.get_by_text(f"{len(RUNS)} of {len(RUNS)} claims are shown.").wait_for()
    assert opened.shown() == everything
    page.get_by_label("exact (").uncheck()
    assert opened.shown() == ["softmax", "false", "unsettled", "elsewhere", "red"]
    page.get_by_label("Kind").select_option("arithmetic")
    assert opened.shown() == ["softmax"]
    page.get_by_role("button", name="Show all").click()
    page.get_by_label("Section").select_option("1-recurrence")
    assert opened.shown() == ["history-free"]
    assert not page.locator("[id='2-average']").is_visible()
    page.get_by_role("button", name="Show all").click()
    page.get_by_label("Device").select_option("cuda")
    assert opened.shown() == ["history-free"]


def test_failures_come_first_on_demand_and_go_back(opened: Open) -> None:
    everything = opened.shown()
    opened.page.get_by_label("failures first").check()
    assert opened.shown()[:2] == ["red", "false"]
    assert sorted(opened.shown()) == sorted(everything)
    opened.page.get_by_label("failures first").uncheck()
    assert opened.shown() == everything


def test_a_link_opens_its_claim_whatever_the_filters_say(opened: Open) -> None:
    page = opened.page
    page.get_by_label("Search").fill("no such words")
    assert opened.shown() == []
    page.locator("#author a", has_text="l.11").first.click()
    page.wait_for_selector("details.claim[open]")
    opened_card = page.locator("details.claim[open]")
    assert opened_card.get_attribute("id") == "false"
    assert opened_card.is_visible()


def test_an_address_with_a_claim_opens_it(browser: Any, report: Path) -> None:
    window = Open(browser, report, DESKTOP, "#red")
    assert window.page.locator("#red").evaluate("card => card.open")
    message = window.page.locator("#red pre")
    assert message.is_visible()
    assert SCRIPT in message.inner_text()  # as text
    assert window.page.locator("main img, main script").count() == 0
    window.page.close()


def test_text_from_right_to_left_stays_in_its_place(opened: Open) -> None:
    card = opened.page.locator("#false")
    card.locator("summary").first.click()
    reason = card.locator("dd", has_text=RIGHT_TO_LEFT.split()[0]).first
    assert reason.evaluate("each => getComputedStyle(each).direction") == "rtl"
    title = card.locator("summary [dir=auto]").first
    assert title.evaluate("each => getComputedStyle(each).direction") == "ltr"


def test_the_keyboard_reaches_and_opens_a_claim(opened: Open) -> None:
    page = opened.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.locator("#softmax > summary").focus()
    page.keyboard.press("Enter")
    assert page.locator("#softmax").evaluate("card => card.open")


def test_on_paper_every_claim_is_open_and_the_filters_are_gone(opened: Open) -> None:
    page = opened.page
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator("details.claim:not([open])").count() == 0
    assert not page.locator("#filters").is_visible()
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.locator("details.claim[open]").count() == 0


def test_pictures_follow_the_page_into_the_dark(opened: Open) -> None:
    def colours() -> tuple[str, str]:
        found = opened.page.evaluate(
            "[getComputedStyle(document.body).backgroundColor,"
            " getComputedStyle(document.querySelector('figure svg text')).fill]"
        )
        return found[0], found[1]

    light = colours()
    opened.page.emulate_media(color_scheme="dark")
    dark = colours()
    assert light == ("rgb(255, 255, 255)", "rgb(27, 27, 27)")
    assert dark == ("rgb(22, 24, 29)", "rgb(232, 232, 232)")
