"""Takes the pictures of the docs from one run, the tutorial's test that hangs, with a browser (needs Chromium).

docs/images/deadlock.png is the report; docs/images/summary.png what GitHub shows on the page of a workflow's run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from documents import blocks, write_files
from markdown_it import MarkdownIt
from playwright.sync_api import sync_playwright

IMAGES = ROOT / "docs" / "images"
CHROMIUM = "/usr/bin/chromium"
_SIZE = {"width": 1000, "height": 760}
_LIKE_GITHUB = """
body {font: 14px/1.5 system-ui, sans-serif; color: #1f2328; padding: 24px; border: 1px solid #d1d9e0; border-radius: 6px}
h2 {border-bottom: 1px solid #d1d9e0; padding-bottom: 6px}
pre, code {font: 12px/1.45 ui-monospace, monospace; background: #f6f8fa; border-radius: 6px; padding: 2px 4px}
pre {padding: 16px; overflow: hidden}
pre code {padding: 0}
table {border-collapse: collapse; margin: 12px 0}
th, td {border: 1px solid #d1d9e0; padding: 6px 13px}
"""


def main() -> None:
    """Run the test and take the pictures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(blocks("docs/tutorial.md", "A DDP test that hangs"), folder)
        run = [sys.executable, "-m", "disttest", "run", "test_training.py"]
        step = {"GITHUB_STEP_SUMMARY": str(folder / "step-summary.md")}
        subprocess.run(run, cwd=folder, check=False, env={**os.environ, **step})
        # Paths of this machine say nothing to a reader.
        summary = (folder / "step-summary.md").read_text().replace(name, "/home/me/project")
        (folder / "summary.html").write_text(summary_page(summary.replace(str(ROOT), "/home/me/dist-tests")))
        IMAGES.mkdir(exist_ok=True)
        take(f"{(folder / 'results' / 'report.html').as_uri()}#test=0", IMAGES / "deadlock.png")
        take((folder / "summary.html").as_uri(), IMAGES / "summary.png", whole=True)


def summary_page(markdown: str) -> str:
    """The page that GitHub would make of a step's summary, with its first failure opened."""
    body = MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown)
    # Not every machine has a font with emoji.
    body = body.replace("❌", "<span style='color: #d1242f'>✖</span>")
    opened = body.replace("<details>", "<details open>", 1)
    return f"<!doctype html><meta charset=utf-8><style>{_LIKE_GITHUB}</style>{opened}"


def take(address: str, picture: Path, *, whole: bool = False) -> None:
    """Take a picture of the first screen, or of the whole page."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport=_SIZE, color_scheme="light")
        page.goto(address)
        page.screenshot(path=picture, full_page=whole)
        browser.close()


if __name__ == "__main__":
    main()
