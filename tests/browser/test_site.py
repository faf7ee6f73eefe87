"""The documentation as a site: built without a warning, searched in a browser, and fetching nothing from elsewhere."""

from __future__ import annotations

import functools
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

ROOT = Path(__file__).resolve().parents[2]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=False, timeout=120,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert (built.returncode, built.stdout) == (0, "")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_what_somebody_looks_for_is_found(browser: Browser, site: str) -> None:
    page = browser.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(site)

    page.get_by_role("textbox", name="Search").fill("expect_deadlock")

    expect(page.locator(".md-search-result__item").first).to_contain_text("expect_deadlock")
    assert [url for url in asked if not url.startswith((site, "data:", "blob:"))] == []


def test_the_four_parts_stand_above_each_page(browser: Browser, site: str) -> None:
    page = browser.new_page(viewport={"width": 1300, "height": 800})
    page.goto(f"{site}/tutorial/")

    expect(page.locator(".md-tabs__link")).to_have_text(
        ["disttest", "Tutorial", "How to", "Reference", "Explanation"]
    )
    assert page.locator("article img").evaluate("image => image.naturalWidth") > 0


def test_a_page_in_a_folder_shows_its_figure_and_links_to_the_repository(browser: Browser, site: str) -> None:
    page = browser.new_page()
    page.goto(f"{site}/design/processes/")

    assert page.locator("article img").evaluate("image => image.naturalWidth") > 0
    expect(page.get_by_role("link", name="plans", exact=True)).to_have_attribute("href", "../../planning/")
    page.goto(f"{site}/observe/")
    expect(page.get_by_role("link", name="the class")).to_have_attribute(
        "href", "https://github.com/org/dist-tests/blob/main/entrypoint/disttest/observe/tool.py"
    )
