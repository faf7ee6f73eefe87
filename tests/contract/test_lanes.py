"""tools/lanes: kinds of tests side by side; and the pieces that the Makefile cuts long kinds into."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections import Counter
from pathlib import Path
from select import select

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENVIRON = {"PATH": os.environ["PATH"]}
"""Without what an outer make was given: SKIP=docker is nothing to these."""
MAKEFILE = """\
good:
\t@echo fine; ls /dev/shm; touch /dev/shm/$@
waits:
\t@echo waited
stays stays-too stays-later:
\t@echo begun; exec sleep infinity
bad:
\t@echo 'FAILED tests/test_x.py::test_y'; ls /dev/shm; touch /dev/shm/$@; false
"""


def said(variable: str, *words: str) -> list[str]:
    """The words of a variable of the Makefile."""
    argv = ["make", "--no-print-directory", "--eval", f"said: ; @echo $({variable})", "said", *words]
    done = subprocess.run(argv, cwd=ROOT, env=ENVIRON, capture_output=True, text=True, check=True)
    return done.stdout.split()


def pieces(*words: str) -> list[str]:
    """All that `make test` and `make rest` run side by side."""
    return [*said("call wanted_of,$(FIRST)", *words), *said("PIECES", *words)]


@pytest.mark.parametrize("kind", ["core", "integration", "cuda"])
def test_each_file_is_in_one_piece(kind: str) -> None:
    letters = [each.removeprefix(f"{kind}-") for each in pieces() if each.startswith(f"{kind}-")]
    folder = ROOT / "tests" / kind
    found = Counter(path for each in letters for path in folder.glob(f"test_[{each}]*.py"))

    assert len(letters) > 1
    assert dict.fromkeys(folder.glob("test_*.py"), 1) == found


def test_no_kind_is_forgotten_and_those_that_are_left_out_are() -> None:
    kinds, waiting = said("KINDS"), said("WAITING")

    assert sorted(kinds) == sorted(
        {re.sub("^(core|integration|cuda)-.*", r"\1", each) for each in pieces()} | {*waiting}
    )
    assert len(waiting) > 1

    skip = f"SKIP={','.join({*kinds} - {'unit', 'plugins', 'docker'})}"
    assert ["unit", "plugins"] == pieces(skip)
    assert ["docker"] == said("WAITING", skip)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    if os.geteuid() != 0:
        pytest.skip("mounts of its own take root")
    folder = tmp_path_factory.mktemp("lanes")
    (folder / "Makefile").write_text(MAKEFILE)
    return subprocess.run(
        [ROOT / "tools" / "lanes", "1", "bad", "good", "--", "waits"],
        cwd=folder, env=ENVIRON, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_all_are_run_and_what_was_red_is_told_at_the_end(ended: subprocess.CompletedProcess[str]) -> None:
    lines, _, told = ended.stdout.partition("\nWhat was red or flaky")

    assert ended.returncode != 0
    assert "[good] fine\n" in lines
    assert "[bad] FAILED tests/test_x.py::test_y" in told
    assert "[bad] LANE: red\n" in told
    for each in "bad", "good", "waits":
        assert re.search(
            rf"^\[{each}\] LANE: \d+m\d+s, of processors \d+m\d+s and \d+m\d+s$", told, re.MULTILINE
        )
    assert "[waits] waited\n" in lines
    assert "[good] fine" not in told


def test_none_sees_shared_memory_of_another(ended: subprocess.CompletedProcess[str]) -> None:
    here = {path.name for path in Path("/dev/shm").iterdir()}

    assert "[good] bad" not in ended.stdout
    assert not {"good", "bad"} & here


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts of its own take root")
def test_ctrl_c_ends_all_of_them_and_begins_no_other(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    argv = [ROOT / "tools" / "lanes", "1", "stays", "stays-later", "--", "stays-too", "stays-later"]
    ours, of_all = os.pipe()  # whoever lives holds the other end

    with subprocess.Popen(
        argv,
        cwd=tmp_path,
        env=ENVIRON,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[of_all],
        start_new_session=True,
    ) as lanes:
        os.close(of_all)
        try:
            assert lanes.stdout is not None
            assert {lanes.stdout.readline() for _ in range(2)} == {"[stays] begun\n", "[stays-too] begun\n"}
            os.killpg(lanes.pid, signal.SIGINT)
            all_ended, _, _ = select([ours], [], [], 30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(lanes.pid, signal.SIGKILL)
    os.close(ours)

    assert all_ended
    assert lanes.returncode != 0
