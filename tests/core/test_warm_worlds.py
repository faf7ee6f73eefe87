"""Warm worlds: reused, cleaned between tests, leaks named, replaced after a failure."""

import re

import pytest
from lab import IMPORTS_AT_FORK

from disttest.model import Outcome

SUITE = """
    import os
    import random
    import signal
    import threading
    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.world_size(2)
    PIDS = {}

    def test_a_first(world):
        print("pid", os.getpid())
        torch.rand(3)

    def test_b_same_process(world):
        print("pid", os.getpid())

    def test_c_leaks(world):
        os.environ["LEAKED"] = "1"
        os.environ.pop("HOME", None)
        os.chdir("/")
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.use_deterministic_algorithms(True)
        dist.new_group([0, 1])
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def test_d_is_clean(world):
        assert "LEAKED" not in os.environ and "HOME" in os.environ
        assert os.getcwd() != "/"
        assert torch.get_default_dtype() is torch.float32
        assert torch.is_grad_enabled()
        assert not torch.are_deterministic_algorithms_enabled()
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
        print("pid", os.getpid())

    def test_e_thread(world):
        threading.Thread(target=threading.Event().wait, name="forgotten", daemon=True).start()

    def test_f_after_thread(world):
        assert [t.name for t in threading.enumerate()] == ["MainThread"]
        print("pid", os.getpid())

    def test_g_destroys_group(world):
        dist.destroy_process_group()

    def test_h_group_is_back(world):
        dist.barrier()

    def test_i_fails(world):
        assert world.rank

    def test_j_new_world_goes_on(world):
        dist.barrier()
        print("pid", os.getpid())

    @pytest.mark.fresh_world
    def test_k_fresh(world):
        print("pid", os.getpid())

    def test_l_seed_is_the_same_on_all_ranks(world):
        mine = torch.rand(4)
        theirs = mine.clone()
        dist.broadcast(theirs, 0)
        assert torch.equal(mine, theirs)
        everyone = [None, None]
        dist.all_gather_object(everyone, random.random())
        assert everyone[0] == everyone[1]

    @pytest.fixture(scope="module", autouse=True)
    def module_environment():
        os.environ["FROM_FIXTURE"] = "yes"
        yield
        del os.environ["FROM_FIXTURE"]

    def test_m_module_fixture_is_no_leak(world):
        assert os.environ["FROM_FIXTURE"] == "yes"

    @pytest.fixture(scope="module")
    def late_module_fixture():
        os.environ["FROM_LATE_FIXTURE"] = "yes"
        yield
        del os.environ["FROM_LATE_FIXTURE"]

    def test_n_late_module_fixture_is_no_leak(world, late_module_fixture):
        assert os.environ["FROM_FIXTURE"] == os.environ["FROM_LATE_FIXTURE"] == "yes"

    @pytest.fixture
    def careless():
        os.environ["FROM_CARELESS"] = "yes"

    def test_o_careless_fixture(world, careless):
        assert os.environ["FROM_FIXTURE"] == os.environ["FROM_LATE_FIXTURE"] == "yes"

    def test_p_after_careless_fixture(world):
        assert os.environ["FROM_FIXTURE"] == os.environ["FROM_LATE_FIXTURE"] == "yes"
        assert "FROM_CARELESS" not in os.environ
"""


@pytest.fixture(scope="module")
def ended(module_lab):
    return module_lab.write(test_warm=SUITE).run("test_warm.py")


def pid(ended, name):
    return ended.log(name, 0).split("pid ")[1].split()[0]


def test_all_but_the_failing_one_pass(ended):
    assert ["test_i_fails[2xgloo]"] == [test.test.name for test in ended.run.bad], ended.output


def test_processes_are_kept_until_something_breaks(ended):
    same = {pid(ended, name) for name in ("test_a_first", "test_b_same_process", "test_d_is_clean")}

    assert 1 == len(same)
    assert len({*same, pid(ended, "test_f_after_thread"), pid(ended, "test_j_new_world_goes_on")}) == 3
    assert pid(ended, "test_k_fresh") not in same


def test_leaks_are_named(ended):
    notes = "\n".join(ended.result("test_c_leaks").notes)

    for leak in (
        "ranks 0, 1 leaked environment LEAKED: unset became '1'",
        "ranks 0, 1 leaked environment HOME:",
        "ranks 0, 1 leaked directory:",
        "ranks 0, 1 leaked torch default dtype: torch.float32 became torch.float64",
        "ranks 0, 1 leaked torch grad mode: True became False",
        "ranks 0, 1 leaked torch deterministic algorithms:",
        "ranks 0, 1 leaked process group ",
        "ranks 0, 1 leaked signal SIGUSR1:",
    ):
        assert leak in notes
    assert "ranks 0, 1 leaked thread forgotten (still there)" in ended.result("test_e_thread").notes


def test_what_the_fixture_of_one_test_has_left_is_a_leak_beside_fixtures_of_the_module(ended):
    (note,) = ended.result("test_o_careless_fixture").notes

    assert "ranks 0, 1 leaked environment FROM_CARELESS: unset became 'yes'" == note


def test_what_is_not_a_leak_is_not_named(ended):
    harmless = ("test_m_module_fixture_is_no_leak", "test_n_late_module_fixture_is_no_leak")
    for name in ("test_a_first", "test_b_same_process", *harmless, "test_p_after_careless_fixture"):
        assert () == ended.result(name).notes


def test_fresh_isolation_gives_every_test_new_processes(module_lab):
    fresh = module_lab.pytest(
        "test_warm.py", "--disttest-isolation=fresh", "-k", "_a_ or _b_", results="fresh"
    )

    assert Outcome.PASSED is fresh.result("test_b_same_process").outcome
    assert pid(fresh, "test_a_first") != pid(fresh, "test_b_same_process")


def test_what_ranks_would_import_is_imported_before_the_fork(lab):
    ended = lab.write(
        test_lazy="""
        import sys
        import pytest
        import torch

        @pytest.mark.fresh_world
        @pytest.mark.world_size(2)
        def test_step(world):
            assert {"torch._dynamo", "torch.fx.experimental.symbolic_shapes"} <= set(sys.modules)
            weight = torch.nn.Parameter(torch.ones(1))
            torch.optim.SGD([weight]).step()
            torch.testing.assert_close(weight, torch.ones(1))
        """
    ).run("test_lazy.py")

    assert 0 == ended.exit_code, ended.output
    assert not [note for note in ended.run.notes if "fork" in note.message], ended.output


def test_a_rank_imports_nothing_for_itself(lab):
    ended = lab.write(
        conftest=IMPORTS_AT_FORK,
        test_imports="""
        import sys
        import pytest
        import torch
        import torch.distributed as dist
        from conftest import HAD_AT_FORK

        pytestmark = pytest.mark.world_size(2)

        @pytest.mark.parametrize("number", [1, 2])  # the second sees what the first was cleaned up with
        def test_nothing_new(world, number):
            dist.all_reduce(torch.ones(1))
            assert HAD_AT_FORK and set() == set(sys.modules) - HAD_AT_FORK
        """,
    ).run("test_imports.py", "--sanitize", "off")

    assert 0 == ended.exit_code, ended.output


NESTED = """
    import os
    import pytest

    pytestmark = pytest.mark.world_size(1)

    @pytest.fixture(scope="module", autouse=True)
    def outer():
        os.environ["MODE"] = "outer"
        yield
        del os.environ["MODE"]

    @pytest.fixture(scope="module")
    def named():
        os.environ["NAMED"] = "yes"
        yield
        del os.environ["NAMED"]

    class {Name}:
        @pytest.fixture(scope="class", autouse=True)
        def inner(self):
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("MODE", "inner")
                yield

        def test_inner(self, world):
            assert os.environ["MODE"] == "inner"
            {leak}

    def test_outer(world, request):
        assert (os.environ["MODE"], os.environ.get("LEFT")) == ("outer", None)
        request.getfixturevalue("named")

    def test_named(world, named):
        assert os.environ["NAMED"] == "yes"
"""


def test_values_of_fixtures_that_are_still_set_up_stay(lab):
    one = NESTED.replace("{Name}", "TestOne").replace("{leak}", "os.environ['LEFT'] = '1'")
    two = NESTED.replace("{Name}", "TestTwo").replace("{leak}", "\n\n        test_again = test_inner")

    ended = lab.write(test_one=one, test_two=two).run(".", "--slots", "1")

    assert 0 == ended.exit_code, ended.output
    notes = {test.test.name: test.final.notes for test in ended.run.tests if test.final.notes}
    assert {"test_inner[1xgloo]": ("rank 0 leaked environment LEFT: unset became '1'",)} == notes


WIDER = """
    import os
    import pytest
    import torch.distributed as dist

    pytestmark = pytest.mark.world_size(2)

    class TestParameter:
        @pytest.fixture(scope="class", params=["fast", None])
        def mode(self, request):
            if request.param is None:
                yield
                return
            os.environ["MODE"] = request.param
            yield
            del os.environ["MODE"]

        def test_mode(self, world, mode, request):
            assert os.environ.get("MODE") == request.node.callspec.params["mode"]

    class TestRemoved:
        @pytest.fixture(scope="class", autouse=True)
        def variable(self):
            os.environ["VARIABLE"] = "1"
            yield
            os.environ.pop("VARIABLE", None)

        def test_set(self, world):
            pass

        def test_removes(self, world):
            del os.environ["VARIABLE"]

    class TestNarrow:
        @pytest.fixture(scope="class", autouse=True)
        def wide(self):
            yield

        @pytest.fixture(autouse=True)
        def narrow(self):
            yield
            os.environ["LEAKED"] = "1"

        def test_leaks(self, world):
            pass

    class TestByName:
        @pytest.fixture(scope="class")
        def named(self):
            yield

        def test_leaks_in_call(self, world, request):
            os.environ["IN_CALL"] = "1"
            request.getfixturevalue("named")

        def test_after_it(self, world):
            assert "IN_CALL" not in os.environ

    class TestGroup:
        @pytest.fixture(scope="class", autouse=True)
        def wide(self):
            yield
            if os.environ["RANK"] == "0":
                dist.destroy_process_group()

        def test_destroys(self, world):
            pass

    def test_clean(world):
        assert not {"MODE", "VARIABLE", "LEAKED", "IN_CALL"} & os.environ.keys()
        dist.barrier()
"""


def test_fixtures_of_a_class_leave_nothing_to_later_tests(lab):
    ended = lab.write(test_wider=WIDER).run("test_wider.py", "--slots", "2", "--timeout", "20")

    assert 0 == ended.exit_code, ended.output
    noted = {
        test.test.name
        for test in ended.run.tests
        if any("leaked environment" in note for note in test.final.notes)
    }
    assert {"test_leaks[2xgloo]", "test_leaks_in_call[2xgloo]"} == noted


MESHES = """
    import pytest
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    pytestmark = [pytest.mark.world_size(2), pytest.mark.parametrize("turn", range(2))]

    def multiply(mesh):
        left, right = (distribute_tensor(torch.ones(4, 4), mesh, [Shard(dim)]) for dim in (0, 1))
        assert torch.mm(left, right).full_tensor().sum() == 64
"""
GROUPS = f"""{MESHES}
    def test_group_is_left(world, turn):
        multiply(DeviceMesh.from_group(dist.new_group([0, 1]), "cpu"))

    def test_group_is_destroyed(world, turn):
        group = dist.new_group([0, 1])
        multiply(DeviceMesh.from_group(group, "cpu"))
        dist.destroy_process_group(group)
"""
FIXTURE = f"""{MESHES}
    @pytest.fixture(scope="module")
    def meshes():
        return []

    @pytest.fixture
    def mesh(world, meshes):
        if not meshes:
            meshes.append(DeviceMesh.from_group(dist.new_group([0, 1]), "cpu"))
        return meshes[0]

    def test_of_a_module(world, turn, mesh):
        multiply(mesh)
"""
HASHED = f"""{MESHES}
    def test_group_with_a_hash_is_destroyed(world, turn):
        other = [dist.new_group([0, 1]) for _ in range(turn)]
        group = dist.new_group([0, 1], use_local_synchronization=True)
        multiply(DeviceMesh.from_group(group, "cpu"))
        dist.destroy_process_group(group)
        for each in other:
            dist.destroy_process_group(each)
"""
WORLD = f"""{MESHES}
    def test_world(world, turn):
        multiply(init_device_mesh("cpu", (2,)))
"""


def test_a_mesh_is_not_taken_for_an_equal_one_of_an_earlier_test(lab):
    ended = lab.write(test_groups=GROUPS, test_world=WORLD, test_fixture=FIXTURE, test_hashed=HASHED).run(".")

    assert ended.exit_code == 0, ended.output
    notes = [(test.test.name, note) for test in ended.run.tests for note in test.final.notes]
    left = [note for name, note in notes if "group_is_left" in name]
    assert len(left) == len(notes) == 2
    assert all(re.fullmatch(r"ranks 0, 1 leaked process group \d \(still there\)", note) for note in left)
    for file in ("test_world.py", "test_fixture.py"):
        worlds = [test.final.world_id for test in ended.run.tests if file in test.test.nodeid]
        assert len(worlds) == 2
        assert len(set(worlds)) == 1, "ranks whose groups live on are kept"


COMPILES = """
    import sys

    import pytest
    import torch
    from torch._inductor.async_compile import AsyncCompile

    @pytest.mark.world_size(1)
    @pytest.mark.parametrize("turn", range(2))
    def test_compiles(world, turn):
        # As torch.compile, without the time of a C++ compiler.
        AsyncCompile.pool().submit(len, "").result()
        sys.setrecursionlimit(2000)
        sys.path.append("/packages/setuptools/_vendor")
        torch.distributed.config.get_config_copy()
        torch.compile(lambda x: x + turn, backend="aot_eager")(torch.ones(1))

    @pytest.mark.world_size(1)
    def test_leaves_more(world):
        sys.setrecursionlimit(5000)
        sys.path += ["/left", "/packages/setuptools/_vendor"]

    @pytest.mark.world_size(1)
    def test_meets_nothing(world):
        assert sys.getrecursionlimit() < 2000
        assert "/left" not in sys.path
        assert "/packages/setuptools/_vendor" in sys.path
"""


def test_what_torchs_compiler_keeps_is_no_leak_and_costs_no_world(lab):
    ended = lab.write(test_compiles=COMPILES).run("test_compiles.py", "--slots", "1")

    assert ended.exit_code == 0, ended.output
    notes = {test.test.name: test.final.notes for test in ended.run.tests}
    assert 2 == len(notes.pop("test_leaves_more[1xgloo]"))
    assert {()} == set(notes.values())
    assert len({test.final.world_id for test in ended.run.tests}) == 1


LIBRARIES = """
    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.world_size(2)

    def test_worker_of_a_loader(world):
        from torch.utils.data import DataLoader

        assert len([*DataLoader(range(4), num_workers=1)]) == 4

    def test_first_use_of_multiprocessing(world):
        import multiprocessing

        multiprocessing.get_context()
        multiprocessing.Lock()

    def test_groups_of_a_mesh(world):
        from torch.distributed.device_mesh import init_device_mesh

        init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "model"))

    def test_first_import_that_sets_levels(world):
        import torch.distributed.checkpoint
"""


def test_what_libraries_do_by_themselves_is_not_named(lab):
    ended = lab.write(test_libraries=LIBRARIES).run("test_libraries.py")

    assert ended.exit_code == 0, ended.output
    named = [note for test in ended.run.tests for note in test.final.notes]
    assert [] == [note for note in named if "QueueFeederThread" not in note]  # it may need a moment to end
