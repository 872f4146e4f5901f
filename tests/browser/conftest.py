"""A dashboard, and a browser in front of it."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser_dashboard import Dashboard
from playwright.sync_api import ConsoleMessage, Page, sync_playwright

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
# A deep link asks for the health of `/runs/` first and learns that there is none; Streamlit's way to find its root.
HARMLESS = "/_stcore/"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """The logs of the processes behind the page belong to a failure."""
    report = yield
    dashboard = getattr(item, "funcargs", {}).get("dashboard")
    if report.when == "call" and report.failed and dashboard is not None:
        report.sections.append(("logs of dashboard, agent and engines", dashboard.logs()))
    return report


@pytest.fixture
def dashboard(tmp_home: Path, free_port: Callable[[], int]) -> Iterator[Dashboard]:
    running = Dashboard(tmp_home, free_port())
    running.start()
    yield running
    running.end_everything()


@pytest.fixture
def page() -> Iterator[Page]:
    """A page of headless Chromium. An error on its console, an uncaught one, or Streamlit's own fails the test."""
    errors: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error" and HARMLESS not in message.location.get("url", ""):
            errors.append(f"{message.text} ({message.location.get('url')})")

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1360, "height": 900})
        page.on("console", note)
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page
        errors += page.get_by_test_id("stException").all_inner_texts()
        browser.close()
    assert errors == []
