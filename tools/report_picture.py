"""Takes docs/images/deadlock.png: the report of the tutorial's test that hangs, as a browser shows it (needs Chromium)."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from documents import blocks, write_files
from playwright.sync_api import sync_playwright

PICTURE = ROOT / "docs" / "images" / "deadlock.png"
CHROMIUM = "/usr/bin/chromium"
_SIZE = {"width": 1000, "height": 760}


def main() -> None:
    """Run the test and take the picture."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(blocks("docs/tutorial.md", "A DDP test that hangs"), folder)
        subprocess.run([sys.executable, "-m", "disttest", "run", "test_training.py"], cwd=folder, check=False)
        PICTURE.parent.mkdir(exist_ok=True)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=CHROMIUM, args=["--headless", "--no-sandbox", "--disable-gpu"]
            )
            page = browser.new_page(viewport=_SIZE, color_scheme="light")
            page.goto(f"{(folder / 'results' / 'report.html').as_uri()}#test=0")
            page.screenshot(path=PICTURE)
            browser.close()


if __name__ == "__main__":
    main()
