"""How many ranks a hosted test has, before any of them exists."""

import pytest

from disttest.plugins.launching_classes.recognise import _world_size


class _OfClass:
    def __init__(self, name):
        self.name = name

    world_size = property(lambda self: 3 if self.name == "test_three" else 2)

    def test_three(self):
        pass

    def test_two(self):
        pass


class _OfMethod(_OfClass):
    world_size = property(lambda self: self.not_before_setup)

    def test_marked(self):
        pass

    test_marked._required_world_size = 4

    def test_for_gpus(self):
        pass

    test_for_gpus._min_gpus_required = 8


@pytest.mark.parametrize(
    ("cls", "name", "size"),
    [
        (_OfClass, "test_two", 2),
        (_OfClass, "test_three", 3),
        (_OfMethod, "test_marked", 4),
        (_OfMethod, "test_for_gpus", 8),
        (_OfMethod, "test_two", None),
    ],
)
def test_by_the_class_else_by_the_method(cls, name, size):
    assert size == _world_size(cls, name)
