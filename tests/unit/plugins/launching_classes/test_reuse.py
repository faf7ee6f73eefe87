"""Whose ranks may run one test after another: by what a class defines, and when in doubt nobody's."""

import functools
import os
import types
from pathlib import Path

import pytest

from disttest.plugins.launching_classes.reuse import why_new_ranks


class Base:
    """In the place of torch's."""

    def setUp(self):
        pass

    def tearDown(self):
        pass

    def _spawn_processes(self):
        pass

    def _run(self):
        pass


class Starts(Base):
    def setUp(self):
        super().setUp()
        os.environ["WORLD_SIZE"] = str(self.world_size)
        self._spawn_processes()

    def tearDown(self):
        super(Starts, self).tearDown()  # noqa: UP008
        try:  # noqa: SIM105  # as torch's have it
            os.remove(self.file_name)
        except OSError:
            pass


class Sums(Starts):
    def test_sum(self):
        return self.world_size


def with_names(**names):
    return types.new_class("Odd", (Starts,), exec_body=lambda namespace: namespace.update(names))


class DTensors(Starts):
    pass


DTensors.__module__ = "torch.testing._internal.distributed._tensor.common_dtensor"


def does_more(self):
    Starts.setUp(self)
    self.answer = Path("answer").read_text()


def looks(self):
    return [process.name for process in self.processes]


def wrapped(self):
    @functools.wraps(looks)
    def wrapper(self):
        return looks(self)

    return wrapper


def test_ranks_of_a_class_that_only_starts_them_may_be_reused():
    assert "" == why_new_ranks(Sums, Base)


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (with_names(setUp=does_more), "Odd.setUp does more (Path, answer, read_text)"),
        (with_names(tearDown=functools.partial(print)), "Odd.tearDown does more (no function)"),
        (with_names(_run=looks), "Odd has its own _run"),
        (with_names(_spawn_processes=looks), "Odd has its own _spawn_processes"),
        (with_names(test_codes=looks), "Odd.test_codes looks at processes"),
        (with_names(test_codes=wrapped(None)), "Odd.test_codes looks at processes"),
        (with_names(alive=property(looks)), "Odd.alive looks at processes"),
        (with_names(helper=staticmethod(looks)), "Odd.helper looks at processes"),
        (
            types.new_class("Sharded", (DTensors,)),
            "DTensors is a base of torch's that may keep more in a process",
        ),
        (types.new_class("Heir", (with_names(_run=looks),)), "Odd has its own _run"),
    ],
)
def test_any_other_class_is_refused_with_the_reason(cls, why):
    assert why == why_new_ranks(cls, Base)


def of_torchs_suite(**names):
    methods = {"setUp": makes_folders, "tearDown": Base.tearDown, "_run": classmethod(makes_a_group), **names}
    cls = type("TestDistBackend", (Base,), methods)
    cls.__module__ = "torch.testing._internal.distributed.distributed_test"
    return cls


def makes_folders(self):
    Base.setUp(self)
    initialize_temp_directories()  # noqa: F821  # torch's
    self.skip_return_code_checks = [self.test_ddp_has_finalized.__wrapped__]


def makes_a_group(cls, rank, test_name, file_name, pipe):
    self = cls(test_name)
    dist.init_process_group(init_method=self.init_method, rank=rank)  # noqa: F821
    self.run_test(test_name, pipe)
    dist.destroy_process_group()  # noqa: F821


def remembers(cls, rank, test_name, file_name, pipe):
    cls.ranks[rank] = cls(test_name)
    cls.ranks[rank].run_test(test_name, pipe)


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (of_torchs_suite(), ""),
        (types.new_class("Heir", (of_torchs_suite(),)), ""),
        (of_torchs_suite(_run=classmethod(remembers)), "TestDistBackend._run does more (ranks)"),
        (of_torchs_suite(setUp=does_more), "TestDistBackend.setUp does more (Path, Starts, answer)"),
        (of_torchs_suite(test_codes=looks), "TestDistBackend.test_codes looks at processes"),
        (of_torchs_suite(join_or_run=looks), "TestDistBackend has its own join_or_run"),
        (
            types.new_class("Heir", (of_torchs_suite(), Base), {}, lambda ns: ns.update(_run=makes_a_group)),
            "Heir has its own _run",
        ),
    ],
)
def test_the_classes_of_torchs_own_suite_are_known_while_they_do_what_is_known(cls, why):
    assert why == why_new_ranks(cls, Base)


def test_a_mixin_counts_and_what_stands_behind_torchs_base_does_not():
    class Behind:
        def _run(self):
            pass

    class Mixin:
        def test_codes(self):
            return self.exitcode

    class OfTorch(Behind):
        _run = Base._run

    class Mixed(Mixin, OfTorch):
        pass

    class Plain(OfTorch):
        pass

    assert "" == why_new_ranks(Plain, OfTorch)
    assert "Mixin.test_codes looks at exitcode" == why_new_ranks(Mixed, OfTorch)
