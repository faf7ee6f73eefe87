"""Real reports of real runs, opened by a real browser that has no network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from results_files import check_results_below
from sample_runs import SampleRun, mixed_run

from disttest.model import Outcome
from disttest.plugins.html.render import render_html
from disttest.reports.past_runs import past_run
from disttest.reports.write import write_reports

HERE = Path(__file__).parent
FAULTY_SUITE = HERE.parent / "fixtures" / "faulty_suites" / "test_verdicts.py"
CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

GREEN = """
import pytest, torch, torch.distributed as dist

@pytest.mark.world_size(1, 2)
@pytest.mark.parametrize("shape", [(1,), (2, 3)])
def test_sum(world, shape):
    x = torch.ones(shape)
    dist.all_reduce(x)
    assert (x == world.size).all()
"""

MANY = """
import pytest

@pytest.mark.parametrize("n", range(5000))
def test_number(n):
    assert n % 97 or n == 0, f"{n} is a multiple of 97"
"""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    assert Path(CHROMIUM).exists(), "no Chromium: apt-get install chromium, or make test SKIP=browser"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def axe() -> str:
    script = HERE / "node_modules" / "axe-core" / "axe.min.js"
    assert script.exists(), "no axe-core: npm ci in tests/browser, or make test SKIP=browser"
    return script.read_text()


def real_run(folder: Path, *arguments: str) -> Path:
    """Run the command for real; returns its results directory."""
    environ = {
        name: text for name, text in os.environ.items() if not name.startswith(("DISTTEST_", "PYTEST_"))
    }
    ended = subprocess.run(
        [sys.executable, "-c", "from disttest.cli.main import main; main()", "run", *arguments],
        cwd=folder,
        env=environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=300,
        check=False,
    )
    report = folder / "results" / "report.html"
    assert report.exists(), ended.stdout + ended.stderr
    check_results_below(folder)
    return folder / "results"


@pytest.fixture(scope="session")
def green(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("green")
    (folder / "test_green.py").write_text(GREEN)
    return real_run(folder, "test_green.py") / "report.html"


@pytest.fixture(scope="session")
def red(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Crashes, hangs, skips, odd output: one test for each way to fail."""
    folder = tmp_path_factory.mktemp("red")
    shutil.copy(FAULTY_SUITE, folder)
    return real_run(folder, FAULTY_SUITE.name, "--timeout", "3") / "report.html"


PARTED = """
import pytest
import torch
import torch.distributed as dist


@pytest.mark.world_size(2)
def test_parts(world):
    for _ in range(20):
        dist.all_reduce(torch.ones(1))
    if world.rank:
        dist.barrier()
    else:
        dist.all_gather([torch.ones(1)] * 2, torch.ones(1))
"""


@pytest.fixture(scope="session")
def parted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A test whose ranks make different calls after many equal ones."""
    folder = tmp_path_factory.mktemp("parted")
    (folder / "test_parted.py").write_text(PARTED)
    return real_run(folder, "test_parted.py") / "report.html"


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    (folder / "test_many.py").write_text(MANY)
    return real_run(folder, "test_many.py") / "report.html"


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Flaky tests, a broken GPU, a file that is not collected: what a machine without GPUs cannot give."""
    folder = tmp_path_factory.mktemp("mixed")
    write_reports(mixed_run(folder), folder)
    return folder / "report.html"


@pytest.fixture(scope="session")
def ten_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("history")
    runs = []
    for number in range(10):
        sample = SampleRun()
        outcome = Outcome.FAILED if number % 3 == 0 else Outcome.PASSED
        sample.test(outcome, name="test_now_and_then", message="now and then", seconds=1.0 + number)
        attempts = [{"outcome": Outcome.FAILED, "message": "once"}] if number % 2 else []
        sample.test(name="test_flaky", attempts=attempts)
        sample.events = [_later(event, 86_400.0 * number) for event in sample.events]
        runs.append(sample.finish())
    path = folder / "report.html"
    path.write_text(render_html(runs[-1], folder, history=[past_run(run) for run in runs[:-1]]))
    return path


def _later(event, seconds: float):
    import msgspec

    return msgspec.structs.replace(event, at_s=event.at_s + seconds)


class Visit:
    """A page, and everything it did that it should not."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def open(self, report: Path, fragment: str = "") -> Page:
        self.page.goto(f"file://{report}{fragment}")
        return self.page


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visit]]:
    """Opens visits; at the end none may have complained, or asked for anything but the file itself."""
    visits: list[Visit] = []

    def begin(*, width: int = 1280, scheme: str = "light", **options: object) -> Visit:
        viewport = {"width": width, "height": 900}
        context = browser.new_context(viewport=viewport, color_scheme=scheme, **options)
        visits.append(Visit(context.new_page()))
        return visits[-1]

    yield begin
    for one in visits:
        assert one.complaints == []
        assert all(url.startswith(("file://", "data:")) for url in one.requests)
        assert len({url.partition("#")[0] for url in one.requests if url.startswith("file:")}) <= 1
        one.page.context.close()
