"""Whose ranks may run one test after another: by what a class defines, and when in doubt nobody's."""

import functools
import os
import types
from pathlib import Path

import pytest

from disttest.runtime.hosting.reuse import why_new_ranks


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
