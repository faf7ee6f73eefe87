"""Notes on groups that a test has broken."""

from disttest.observe import Group
from disttest.runtime.rank import waits


def a_group(name: str) -> Group:
    return Group(name=name, description="", ranks=(0, 1), backend="gloo", timeout_s=None)


def test_the_note_on_an_aborted_group_outlives_another_one(monkeypatch):
    monkeypatch.setattr(waits, "living_groups", lambda: {0: "first"})
    broken = waits.BrokenGroups()
    broken.on_abort(a_group("first"))
    broken.on_abort(a_group("second"))
    broken.on_group(a_group("second"), made=False)

    assert broken.living() == ("group first, which was aborted",)
