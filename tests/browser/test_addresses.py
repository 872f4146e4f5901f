"""Every page is reached by its own name in the address."""

import pytest
from browser_dashboard import Dashboard
from playwright.sync_api import Page, expect

pytestmark = [pytest.mark.browser, pytest.mark.engine, pytest.mark.timeout(120)]


def test_each_page_has_its_own_address(dashboard: Dashboard, page: Page) -> None:
    for address, title in (
        ("tune", "Tune"),
        ("runs", "Runs"),
        ("compare", "Compare A/B"),
        ("trace", "Trace"),
        ("host", "Host"),
        ("", "Tune"),
    ):
        page.goto(f"{dashboard.url}/{address}")
        expect(page.get_by_role("heading", name=title, exact=True)).to_be_visible(timeout=30_000)
        expect(page.get_by_text("does not exist")).to_have_count(0)
        expect(page.get_by_text("Page not found")).to_have_count(0)
    expect(page.get_by_role("link", name="Tune")).to_have_count(1)
