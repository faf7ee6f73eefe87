"""Every hostile trial holds its claim."""

import pytest
from hostile import Trial, all_trials
from lab import Lab


@pytest.mark.parametrize("trial", all_trials(), ids=str)
def test_hostile(trial: Trial, lab: Lab) -> None:
    trial.run(lab)


def test_trials_have_names_of_their_own() -> None:
    names = [trial.id for trial in all_trials()]

    assert sorted(set(names)) == sorted(names)
