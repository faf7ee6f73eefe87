"""Functions, classes and values that tests have replaced.

Values count only under public names: libraries set private attributes of their modules in normal use
(``tempfile._name_sequence``, ``torch.cuda._initialized``). A look at a module compares the identity of its values with
those of the previous look; names are only examined after a difference. A module that was not modified gets no look.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from disttest.observe import is_of_observer
from disttest.plugins.state_facets.dict_version import UntilChanged
from disttest.runtime.rank.facet import MISSING, Facet, Values, change, presence

# Modules, and classes of modules.
_WATCHED = (
    *(
        "builtins",
        "json",
        "math",
        "os",
        "pickle",
        "posixpath",
        "random",
        "shutil",
        "signal",
        "socket",
        "subprocess",
    ),
    *(
        "tempfile",
        "threading",
        "time",
        "logging",
        "unittest.case:TestCase",
        "numpy",
        "numpy.testing",
        "pytest",
    ),
    *(
        "pathlib:Path",
        "copy",
        "torch.nn",
        "torch.nn.init",
        "torch.nn.utils",
        "torch.optim",
        "torch.utils.checkpoint",
    ),
    *("torch.autograd:Function", "torch.nn:Linear", "torch.nn:LayerNorm", "torch.nn:Embedding"),
    "torch.nn:Parameter",
    *("torch.nn.parallel:DistributedDataParallel", "torch.utils.data:DataLoader"),
    *("torch.distributed.fsdp", "torch.distributed.tensor:DTensor"),
    *("torch", "torch:Tensor", "torch.autograd", "torch.cuda", "torch.distributed"),
    *(
        "torch.distributed.distributed_c10d",
        "torch.multiprocessing",
        "torch.nn.functional",
        "torch.nn:Module",
    ),
    # Not SGD, Adam and AdamW: torch replaces their methods when it compiles an optimizer step.
    *("torch.optim:Optimizer", "torch.random", "torch.testing", "torch.testing._comparison"),
    *("torch.testing._internal.common_utils:TestCase", "torch.utils.data"),
)
# Module -> public values that another facet restores, or that the library sets.
_OF_OTHER_FACETS: dict[str, set[str]] = {
    "tempfile": {"tempdir"},
    "time": {"altzone", "daylight", "timezone", "tzname"},
    "torch": {"default_generator"},
    # Created with CUDA, which stays initialized.
    "torch.cuda": {"default_generators"},
    "torch.distributed.distributed_c10d": {"default_pg_timeout"},
}
# Types whose values appear in notes; the text of others is code of the test.
_PLAIN = (bool, bytes, complex, float, int, str, type(None))
# Takes the place of a deleted value.
_DELETED = "deleted"


Replaced = list[tuple[tuple[str, str], Any]]
"""Label and name of each replaced value, with its current value."""


class _Watched:
    """A module or a class in the state of its first look."""

    def __init__(self, label: str, owner: Any) -> None:
        self.owner = owner
        self._label = label.replace(":", ".")
        self._seen = [*vars(owner).values()]
        self._names = frozenset(vars(owner))
        elsewhere = _OF_OTHER_FACETS.get(label, set())
        self.originals = {
            name: value
            for name, value in vars(owner).items()
            if _counts(name, value) and name not in elsewhere
        }
        self.replaced = UntilChanged(vars(owner), self._look)

    def _look(self) -> Replaced:
        values = [*vars(self.owner).values()]
        try:
            # One comparison of lists is the usual case: `==` compares identities first and runs in C.
            if values == self._seen:
                return []
        except Exception:  # noqa: BLE001, S110 - a value that cannot be compared is a new one
            pass
        now = vars(self.owner)
        found = [
            ((self._label, name), now.get(name, _DELETED))
            for name, original in self.originals.items()
            if now.get(name) is not original
        ]
        found += [((self._label, name), now[name]) for name in self._hidden(now)]
        # Only private values have changed. The next look must not go through the names again because of
        # them.
        if not found:
            self._seen = values
        return found

    def restore(self, name: str) -> None:
        """Restore the original value."""
        if name in self.originals:
            setattr(self.owner, name, self.originals[name])
        else:
            delattr(self.owner, name)

    def _hidden(self, now: Mapping[str, Any]) -> list[str]:
        """List attributes that newly override those of base classes."""
        bases = self.owner.__mro__[1:] if isinstance(self.owner, type) else ()
        new = (
            (name for name, value in now.items() if name not in self._names and _counts(name, value))
            if bases
            else ()
        )
        return [name for name in new if any(name in vars(base) for base in bases)]


def _counts(name: str, value: Any) -> bool:
    return callable(value) or not name.startswith("_")


_watched: dict[str, _Watched] = {}
# Top-level module name -> entry of ``sys.modules`` at the first look.
_modules: dict[str, Any] = {}


def _patched() -> Values:
    # Modules that a test imports are watched from the next reading on.
    for label in _WATCHED if len(_watched) < len(_WATCHED) else ():
        if label not in _watched and (owner := _find(label)) is not None:
            _watched[label] = _Watched(label, owner)
    replaced = (each for watched in _watched.values() for each in watched.replaced())
    # Over NCCL, the observing layer replaces functions of torch in the middle of a test. They stay.
    return {name: value for name, value in replaced if not (is_of_observer(value) or _is_of_dynamo(value))}


def _is_of_dynamo(value: Any) -> bool:
    """Whether torch replaced a method of modules, as it does with the first compiled function."""
    return getattr(value, "__module__", None) == "torch._dynamo.mutation_guard"


def _find(label: str) -> Any:
    module, _, name = label.partition(":")
    loaded = sys.modules.get(module)
    return getattr(loaded, name, None) if name else loaded


def _watched_at(place: str) -> _Watched:
    return next(each for label, each in _watched.items() if label.replace(":", ".") == place)


def _restore_function(place: tuple[str, str], then: Any) -> bool:
    watched = _watched_at(place[0])
    if then is MISSING:
        watched.restore(place[1])
    elif then is _DELETED:
        delattr(watched.owner, place[1])
    else:
        setattr(watched.owner, place[1], then)
    return True


def _describe_module(what: str, _now: Any, _then: Any) -> str:
    return f"{what} (another one)"


def _describe_function(what: str, now: Any, then: Any) -> str:
    owner, _, name = what.removeprefix("function ").rpartition(".")
    first = _watched_at(owner).originals.get(name, MISSING)
    before, after = (first if value is MISSING else value for value in (then, now))
    after = MISSING if after is _DELETED else after
    if callable(before) or callable(after):
        return f"{what} (another one)"
    what = f"value {owner}.{name}"
    is_plain = all(value is MISSING or isinstance(value, _PLAIN) for value in (before, after))
    return change(what, after, before) if is_plain else f"{what} (another one)"


def _replaced_modules() -> Values:
    if not _modules:
        _modules.update({name: module for name, module in sys.modules.items() if "." not in name})
        _modules.update({label: sys.modules[label] for label in _WATCHED if label in sys.modules})
    return _other_modules()


def _look_at_modules() -> Values:
    return {
        name: sys.modules.get(name)
        for name, module in _modules.items()
        if sys.modules.get(name) is not module
    }


_other_modules = UntilChanged(sys.modules, _look_at_modules)


def _restore_module(name: str, then: Any) -> bool:
    sys.modules[name] = _modules[name] if then is MISSING else then
    return True


def _active_patches() -> list[Any]:
    mock = sys.modules.get("unittest.mock")
    # `patch.start()` adds to this list. Patches of `with` blocks and decorators end with their code.
    return mock._patch._active_patches if mock else []


def _mock_patches() -> Values:
    return {_target(patch): patch for patch in _active_patches()}


def _target(patch: Any) -> str:
    try:
        return f"{getattr(patch.getter(), '__name__', patch.target)}.{patch.attribute}"
    except Exception:  # noqa: BLE001
        return str(patch)


def _stop_patch(name: str, then: Any) -> bool:
    if then is not MISSING:
        return False
    # The last one first: it puts back the value that an earlier one of the same target has set.
    for patch in reversed([each for each in _active_patches() if _target(each) == name]):
        patch.stop()
    return True


FACETS = (
    Facet("patch", _mock_patches, _stop_patch, presence),
    Facet("module", _replaced_modules, _restore_module, _describe_module, kept_since_first=True),
    Facet("function", _patched, _restore_function, _describe_function, kept_since_first=True),
)
