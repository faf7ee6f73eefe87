"""Writes docs/marks.md from marks, fixtures and the class of the world; with --check, only says whether it is up to date."""

from __future__ import annotations

from collections.abc import Iterator

import griffe
from generated_page import cell, write_or_check
from suite_index import ROOT

from disttest.runtime.controller.wanted_worlds import all_marks

HEAD = """# Marks, fixtures, World

Made by `make docs` from the code; do not edit.

```python
# test_sizes.py
import pytest
import torch
import torch.distributed as dist

from disttest.testing import World


@pytest.mark.world_size(2, 4)
@pytest.mark.timeout(60)
def test_sum(world: World) -> None:
    x = torch.ones(3, device=world.device)
    dist.all_reduce(x)
    assert (x == world.size).all()
```

```sh
disttest run test_sizes.py --world-sizes 2
```

## Marks

Put a mark on a function, a class, a module (`pytestmark`), or a parameter (`pytest.param(…, marks=…)`). The closest one counts.

| mark | effect |
|---|---|"""


def main() -> int:
    """Write the page, or compare it."""
    return write_or_check("marks.md", _page(), __doc__)


def _page() -> Iterator[str]:
    yield HEAD
    for mark in all_marks():
        name, _, text = mark.partition(": ")
        yield f"| `{name}` | {cell(text)} |"
    yield "\n## Fixtures\n\n| fixture | value |\n|---|---|"
    for each in _module("plugin").functions.values():
        if any("fixture" in str(decorator.value) for decorator in each.decorators):
            yield f"| `{each.name}` | {_doc(each)} |"
    yield "\n## World\n"
    world = _module("testing/world")["World"]
    yield f"`from disttest.testing import World`. {_doc(world)}\n"
    yield "| attribute | type | meaning |\n|---|---|---|"
    for each in world.attributes.values():
        if each.is_public and each.name != "scratch":
            yield f"| `{each.name}` | `{each.annotation}` | {_doc(each)} |"
    yield "\nMethods of `unittest` classes, which cannot ask for fixtures, have"
    yield "[`current_world()` and more](testing-api.md#names) in `disttest.testing`."


def _module(name: str) -> griffe.Module:
    """A module of the package, read without importing it."""
    path = ROOT / "entrypoint" / "disttest" / f"{name}.py"
    return griffe.visit(path.stem, filepath=path, code=path.read_text(encoding="utf-8"))


def _doc(each: griffe.Object | griffe.Alias) -> str:
    """The first paragraph of its docstring, for a table: references to code as Markdown has them."""
    assert each.docstring is not None, f"{each.path} has no docstring"
    text = each.docstring.value.partition("\n\n")[0].replace("``", "`")
    return cell(text.replace(":attr:", "").replace(":func:", ""))


if __name__ == "__main__":
    raise SystemExit(main())
