"""How soon can one work with report.html of 5,000 tests? Beside pytest-html's page of the same tests.

    python bench/html_report.py            # needs Chromium, and the package registry for the peer

Prints, for each page: its size, the time until it is loaded and its scripts have run, and the time from an input
to the changed list: ours is filtered by text, the peer's, which has no such filter, by a click on a checkbox.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

ROUNDS = 7
TESTS = """
import pytest

@pytest.mark.parametrize("n", range(5000))
def test_number(n):
    assert n % 97 or n == 0, f"{n} is a multiple of 97"
"""
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync")

OURS = """() => new Promise(done => {
  const box = document.getElementById("f-text");
  const begin = performance.now();
  box.value = "4850";
  box.dispatchEvent(new Event("input", {bubbles: true}));
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - begin)));
})"""
PEER = """() => new Promise(done => {
  const box = document.querySelector("input[data-test-result=passed]");
  const begin = performance.now();
  box.click();
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - begin)));
})"""


def make_pages(folder: Path) -> dict[str, Path]:
    """Run the same 5,000 tests both ways."""
    (folder / "test_many.py").write_text(TESTS)
    peer = folder / "peer"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(peer), "--no-deps"]
    subprocess.run([*pip, "pytest-html==4.1.1", "pytest-metadata==3.1.1"], check=True)
    paths = [str(Path(__file__).parents[1] / "entrypoint"), str(peer)]
    ours = [sys.executable, "-c", "from disttest.cli.main import main; main()", "run", "test_many.py"]
    theirs = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "test_many.py",
        "--html=peer.html",
        "--self-contained-html",
    ]
    for command, path in ((ours, paths[:1]), (theirs, paths[1:])):
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
        subprocess.run(command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, check=False)
    return {"disttest": folder / "results" / "report.html", "pytest-html": folder / "peer.html"}


def measure(browser: Browser, path: Path, act: str) -> tuple[float, float]:
    """Return milliseconds until the page is ready, and until it has answered."""
    page: Page = browser.new_page()
    page.goto(f"file://{path}", wait_until="load")
    ready = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    answer = page.evaluate(act)
    page.close()
    return float(ready), float(answer)


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        pages = make_pages(Path(name))
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        acts = {"disttest": OURS, "pytest-html": PEER}
        times: dict[str, list[tuple[float, float]]] = {page: [] for page in pages}
        for _ in range(ROUNDS):
            for page, path in pages.items():
                times[page].append(measure(browser, path, acts[page]))
        browser.close()
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs, median of {ROUNDS}")
        print(f"{'page':12} {'size':>9} {'ready':>9} {'answer':>9}")
        for page, path in pages.items():
            ready, answer = (statistics.median(column) for column in zip(*times[page], strict=True))
            print(f"{page:12} {path.stat().st_size / 1e6:6.2f} MB {ready:6.0f} ms {answer:6.0f} ms")


if __name__ == "__main__":
    main()
