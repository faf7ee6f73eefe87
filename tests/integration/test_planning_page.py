"""docs/planning.md: a plan and a merge, typed as they stand there; the shards between them have run elsewhere."""

from __future__ import annotations

import shutil

from documents import blocks, commands
from planning_cases import case
from shard_runs import ShardRun
from typed import types

from disttest.extras.shards.shard_plan import decode_plan

TESTS = """
    import pytest

    @pytest.mark.world_size(1, 8)
    @pytest.mark.parametrize("number", range(3))
    def test_planned(world, number):
        pass
"""


def test_a_plan_and_a_merge_are_made_as_the_page_says(lab):
    ((plan, _),) = commands(blocks("docs/planning.md", "Over runners"))
    ((merge, _),) = commands(blocks("docs/planning.md", "Merge"))
    lab.write(test_planned=TESTS)
    (lab.folder / "tests").mkdir()
    shutil.move(lab.folder / "test_planned.py", lab.folder / "tests")
    earlier = ShardRun(lab.folder / "last-run")
    earlier.run(case("a", 1))
    earlier.finish()

    printed = types(f"export GITHUB_SHA=0123abc\n{plan}", lab)
    assert "6 tests in " in printed, printed
    assert (lab.folder / "matrix.json").is_file()
    made = decode_plan((lab.folder / "plan.json").read_bytes())
    assert "0123abc" == made.revision
    assert {1, 8} == {test.world.size for shard in made.shards for test in shard.tests if test.world}

    for shard in made.shards:
        ran = ShardRun(lab.folder / "artifacts" / shard.name, shard.number, plan_id=made.plan_id)
        for test in shard.tests:
            ran.run(test)
        ran.finish()
    shutil.move(lab.folder / "plan.json", lab.folder / "artifacts")
    assert f"{len(made.shards)} shards, 6 passed; reports in merged" in types(merge, lab)
