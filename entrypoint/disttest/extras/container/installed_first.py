"""Runs in the image once the user's project is installed there; a copy of this file goes with it.

Tests start in the checkout, whose folder comes first on ``sys.path``. With a flat layout it has the package, too, but not
the modules that were compiled, so that the import of these would fail. A finder that comes before ``sys.path`` takes such
packages from where they are installed. Packages without compiled modules are left to Python.
"""

import sys
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from importlib.metadata import distributions
from pathlib import Path

FINDER = """\
import sys
from importlib.machinery import PathFinder


class InstalledFirst:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [{site!r}], target) if name in {names!r} else None


sys.meta_path.insert(0, InstalledFirst)
"""


def compiled_packages(source: str) -> set[str]:
    """The top-level packages with compiled modules in the distribution that was installed from a folder."""
    return {
        file.parts[0]
        for dist in distributions()
        # pip records the folder (PEP 610): {"dir_info": {}, "url": "file:///tmp/disttest-project"}
        if f'"file://{source}"' in (dist.read_text("direct_url.json") or "")
        for file in dist.files or ()
        # A compiled module outside of packages needs no finder: the checkout has no such file.
        if len(file.parts) > 1 and file.name.endswith(tuple(EXTENSION_SUFFIXES))
    }


def main(source: str) -> None:
    """Install the finder if the project needs it."""
    names = compiled_packages(source)
    found = [PathFinder.find_spec(name) for name in sorted(names)]
    sites = {str(Path(spec.origin).parents[1]) for spec in found if spec is not None and spec.origin}
    for site in sites:
        Path(site, "_disttest_installed_first.py").write_text(FINDER.format(site=site, names=names))
        # At each start, site executes the lines of a .pth file that begin with `import`.
        Path(site, "_disttest_installed_first.pth").write_text("import _disttest_installed_first\n")


if __name__ == "__main__":
    main(sys.argv[1])
