"""One way through the product in a browser, as the README's tour tells it.

With SLIPSTREAM_SCREENSHOTS=1 it also writes the README's pictures to assets/screenshots.
"""

import os
import re
import signal
import time
from collections.abc import Callable

import pytest
from browser_dashboard import ROOT, Dashboard
from playwright.sync_api import Locator, Page, expect

# Read here: the environment is cleaned before each test.
TAKES_PICTURES = os.environ.get("SLIPSTREAM_SCREENSHOTS") == "1"
SCREENSHOTS = ROOT / "assets" / "screenshots"
SERVES_LIMIT_S = 20.0
# Long enough for a busy machine; a step that works takes a fraction of it.
STEP_MS = 30_000
NUMBER = re.compile(r"\d")

pytestmark = [pytest.mark.browser, pytest.mark.engine, pytest.mark.timeout(180)]


def test_tune_restart_load_test_compare_and_reopen(
    dashboard: Dashboard, page: Page, free_port: Callable[[], int]
) -> None:
    page.goto(dashboard.url)
    refuse_a_taken_port(page, dashboard)
    start_the_engine(page, free_port())
    restart_with_mtp(page)
    refuse_a_bad_level(page)
    first = run_a_load_test(page, "mtp", watch=True)
    describe_the_run(page, first)
    restart_without_mtp(page)
    second = run_a_load_test(page, "plain", watch=False)
    compare(page, first, second)
    restart_everything(page, dashboard)
    reopen(page, dashboard, first)


# ---- Tune


def refuse_a_taken_port(page: Page, dashboard: Dashboard) -> None:
    """The port is tried before anything is loaded."""
    expect(button(page, "Start engine")).to_be_enabled(timeout=STEP_MS)
    choose_port(page, dashboard.port)
    press(page, "Start engine")
    expect(page.get_by_role("alert").filter(has_text=str(dashboard.port))).to_be_visible(timeout=STEP_MS)


def start_the_engine(page: Page, port: int) -> None:
    """The form is filled in, the command line is shown, and a click later the tiny checkpoint serves."""
    choose_port(page, port)
    press(page, "Start engine")
    clicked = time.monotonic()
    serves(page)
    seconds = time.monotonic() - clicked
    print(f"served {seconds:.1f} s after the click")
    assert seconds <= SERVES_LIMIT_S


def restart_with_mtp(page: Page) -> None:
    """The command line follows the form; the restart shows its phases."""
    toggle(page, "MTP speculative decoding")
    choose(page, "Draft steps", "3")
    expect(page.get_by_text("--speculative-num-steps 3")).to_be_visible()
    expect(page.get_by_text("changed: needs a restart")).to_be_visible()
    press(page, "Restart engine")
    for phase in ("Stop the old engine", "Load weights", "Load MTP", "Warm up"):
        expect(page.get_by_role("cell", name=phase)).to_be_visible(timeout=STEP_MS)
    serves(page)
    expect(page.get_by_text("changed: needs a restart")).to_have_count(0)


def restart_without_mtp(page: Page) -> None:
    page.get_by_role("link", name="Tune").click()
    toggle(page, "MTP speculative decoding")
    expect(page.get_by_text("changed: needs a restart")).to_be_visible()
    press(page, "Restart engine")
    expect(page.get_by_role("cell", name="Stop the old engine")).to_be_visible(timeout=STEP_MS)
    serves(page)


# ---- load test


def refuse_a_bad_level(page: Page) -> None:
    """A value that cannot be is named where it stands, and nothing starts."""
    fill(page, "Concurrent users", "1, two")
    expect(page.get_by_text("'two' is not a number of users")).to_be_visible()
    expect(button(page, "Start load test")).to_be_disabled()


def run_a_load_test(page: Page, tag: str, *, watch: bool) -> str:
    """Two levels. Figures appear while it runs, and the summary stays when the page is drawn anew. The run's id."""
    fill(page, "Concurrent users", "1, 2")
    fill(page, "Seconds per level", "6", role="spinbutton")
    unfold(page, "Warm-up, temperature, seed", page.get_by_role("textbox", name="Tags"))
    fill(page, "Tags", tag)
    page.get_by_text("Warm-up, temperature, seed").click()
    press(page, "Start load test")
    expect(button(page, "Stop load test")).to_be_visible(timeout=STEP_MS)
    if watch:
        for name in ("Output (tok/s)", "Per user (tok/s)", "Accept length", "Accept rate", "TTFT (ms)", "ITL (ms)"):
            expect(figure(page, name)).to_have_text(NUMBER, timeout=STEP_MS)
        expect(page.get_by_text("level 2 of 2")).to_be_visible(timeout=STEP_MS)
        expect(figure(page, "Output (tok/s)")).to_have_text(NUMBER, timeout=STEP_MS)
        take(page, "load-test", height=1760, after_ms=4000)
    expect(page.get_by_text("Last load test")).to_be_visible(timeout=STEP_MS)
    page.reload()
    link = page.get_by_role("link", name="Open run")
    expect(link).to_be_visible(timeout=STEP_MS)
    return link.inner_text().split()[-1]


# ---- stored runs


def describe_the_run(page: Page, run_id: str) -> None:
    """The summary leads to the stored run; a note and tags are kept with it."""
    page.get_by_role("link", name="Open run").click()
    expect(page.get_by_role("heading", name=f"Run {run_id}")).to_be_visible(timeout=STEP_MS)
    expect(page.get_by_test_id("stDataFrame").first).to_be_visible()
    page.get_by_role("tab", name="Notes and export").click()
    fill(page, "Note", "three steps against none")
    fill(page, "Tags", "mtp, tour")
    press(page, "Save note and tags")
    expect(page.get_by_text("three steps against none").last).to_be_visible()
    expect(page.get_by_test_id("stBadge").or_(page.locator(".stMarkdownBadge")).filter(has_text="tour")).to_be_visible()


def compare(page: Page, first: str, second: str) -> None:
    """Without and with MTP side by side: the differing settings, a verdict and the figures."""
    page.get_by_role("link", name="Compare A/B").click()
    choose(page, "Run A (solid)", second)
    choose(page, "Run B (dashed, hatched)", first)
    expect(page.get_by_role("heading", name="Configuration differences")).to_be_visible(timeout=STEP_MS)
    expect(page.get_by_role("heading", name="Figures")).to_be_visible()
    expect(page.get_by_text("How this was compared")).to_be_visible()
    expect(page.locator(".js-plotly-plot").first).to_be_visible(timeout=STEP_MS)
    take(page, "compare", height=1500)


def restart_everything(page: Page, dashboard: Dashboard) -> None:
    """The end of the dashboard ends its engine and its idle agent."""
    page.goto("about:blank")
    dashboard.stop(signal.SIGTERM)
    deadline = time.monotonic() + SERVES_LIMIT_S
    while dashboard.descendants() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert [process.cmdline() for process in dashboard.descendants()] == []
    dashboard.start()


def reopen(page: Page, dashboard: Dashboard, run_id: str) -> None:
    page.goto(f"{dashboard.url}/runs?run={run_id}")
    expect(page.get_by_role("heading", name=f"Run {run_id}")).to_be_visible(timeout=STEP_MS)
    expect(page.get_by_text("three steps against none").last).to_be_visible()


# ---- hands and eyes


def settled(page: Page) -> None:
    """While Streamlit draws, an element that moves is there twice."""
    expect(page.get_by_test_id("stApp")).to_have_attribute("data-test-script-state", "notRunning", timeout=STEP_MS)


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name).first


def press(page: Page, name: str) -> None:
    settled(page)
    button(page, name).click()


def figure(page: Page, name: str) -> Locator:
    """The value of a live figure."""
    return page.get_by_test_id("stMetric").filter(has_text=name).get_by_test_id("stMetricValue")


def serves(page: Page) -> None:
    expect(button(page, "Restart engine")).to_be_enabled(timeout=STEP_MS)


def toggle(page: Page, label: str) -> None:
    settled(page)
    page.get_by_test_id("stCheckbox").filter(has_text=label).locator("label").first.click()


def choose_port(page: Page, port: int) -> None:
    summary = "Environment variables, other flags, port"
    unfold(page, summary, page.get_by_role("spinbutton", name="Port"))
    fill(page, "Port", str(port), role="spinbutton")
    page.get_by_text(summary).click()
    expect(page.get_by_text(f"--port {port}")).to_be_visible()


def unfold(page: Page, summary: str, field: Locator) -> None:
    """Opens an expander unless its field can be seen already."""
    settled(page)
    if not field.is_visible():
        page.get_by_text(summary).click()
    expect(field).to_be_visible()


def fill(page: Page, label: str, value: str, role: str = "textbox") -> None:
    settled(page)
    field = page.get_by_role(role, name=label)  # type: ignore[arg-type]
    field.fill(value)
    field.press("Tab")


def choose(page: Page, label: str, option: str) -> None:
    settled(page)
    page.get_by_role("combobox", name=label).click()
    page.get_by_role("option", name=option).click()


def take(page: Page, name: str, height: int, after_ms: int = 1500) -> None:
    """A picture for the README; nothing in an ordinary run."""
    if not TAKES_PICTURES:
        return
    usual = page.viewport_size
    page.set_viewport_size({"width": 1360, "height": height})
    page.get_by_test_id("stMain").evaluate("main => main.scrollTo(0, 0)")
    page.mouse.move(0, 0)
    page.wait_for_timeout(after_ms)
    SCREENSHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png")
    if usual is not None:
        page.set_viewport_size(usual)
