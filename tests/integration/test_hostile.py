"""Every hostile trial holds its claim.

As many at once as there are processors: each has a folder of its own and waits most of the time, and what runs beside it
is none of its business.
"""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from hostile import Trial, all_trials
from lab import Lab
from results_files import check_results_below


@pytest.fixture(scope="module")
def ended(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, nothing_left
) -> Iterator[dict[str, Future[None]]]:
    """What comes of the trials that were asked for."""
    mine = [item for item in request.session.items if "ended" in getattr(item, "fixturenames", ())]
    trials = [item.callspec.params["trial"] for item in mine if item.path == request.path]
    folders = [tmp_path_factory.mktemp(trial.id) for trial in trials]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        yield {trial.id: pool.submit(_run, trial, each) for trial, each in zip(trials, folders, strict=True)}
        pool.shutdown(cancel_futures=True)


def _run(trial: Trial, folder: Path) -> None:
    trial.run(Lab(folder))
    check_results_below(folder)


@pytest.mark.slow("each case is a list of runs")
@pytest.mark.parametrize(
    "trial",
    [
        pytest.param(trial, marks=[pytest.mark.thorough(trial.thorough)] if trial.thorough else [])
        for trial in all_trials()
    ],
    ids=str,
)
def test_hostile(trial: Trial, ended: dict[str, Future[None]]) -> None:
    ended[trial.id].result()


def test_trials_have_names_of_their_own() -> None:
    names = [trial.id for trial in all_trials()]

    assert sorted(set(names)) == sorted(names)
