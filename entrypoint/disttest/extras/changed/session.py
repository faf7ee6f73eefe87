"""The part in the pytest process: watches the collection, selects tests, gathers the parts that they used, writes the record."""

from __future__ import annotations

import platform
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import metadata
from pathlib import Path, PurePosixPath

import pytest

from disttest.errors import UsageError
from disttest.extras.changed.changes import Repository
from disttest.extras.changed.choice import Choice, Reason, choose, everything, failed_canaries
from disttest.extras.changed.option_rows import CANARIES, CHANGED, FILE, OPTIONS, USUAL
from disttest.extras.changed.record import (
    Ran,
    Record,
    outcome_of,
    read_record,
    renamed,
    update_record,
    with_run,
)
from disttest.extras.changed.recorder import LoadRecorder, TestRecorder, is_hidden, read_lines
from disttest.extras.changed.sources import LOST, MODULE, UNKNOWN, WHOLE, Sources, Unit, digest_of
from disttest.extras.changed.tables import notes_of
from disttest.extras.history.git_facts import project_of_git
from disttest.model import Outcome, TestCase
from disttest.options.environment import environment
from disttest.options.run import RunOptions
from disttest.options.run_rows import RUN_OPTIONS as CORE_OPTIONS
from disttest.results.repeat import keep_pytest_args
from disttest.runtime.controller.session import RUN, TestSelection
from disttest.runtime.controller.session_options import invocation_of

RECORDER = "disttest-changed-recorder"
"""Name of the plugin of pytest that records tests in a process."""
_SETTINGS = (
    "pyproject.toml",
    "setup.cfg",
    "setup.py",
    "tox.ini",
    "pytest.ini",
    ".pytest.ini",
    "environment.yml",
)
_LOCKS = ("requirements*.txt", "constraints*.txt", "uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock")
_COMPILED = (
    "*.c",
    "*.cc",
    "*.cpp",
    "*.cu",
    "*.cuh",
    "*.h",
    "*.hpp",
    "*.pyx",
    "*.pxd",
    "*.rs",
    "*.f90",
    "CMakeLists.txt",
)
_VARIABLES = (
    "TORCH_",
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
    "PYTORCH_",
    "NCCL_",
    "GLOO_",
    "CUDA_",
    "CUBLAS_",
    "OMP_",
    "MKL_",
    "PYTHONOPTIMIZE",
    "PYTHONDEVMODE",
)
_OF_THIS_MACHINE = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "TORCHINDUCTOR_CACHE_DIR")
"""Variables that a scheduler or the run sets."""


class ChangedSession:
    """State of one session.

    Args:
        config: pytest's configuration.

    Raises:
        UsageError: there is no repository.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._repository = Repository(config.rootpath)
        self.root = self._repository.root
        self._loads = LoadRecorder(str(self.root))
        self.test_files: set[str] = set()
        self.reasons: dict[str, Reason] = {}
        self._names: dict[str, str] = {}
        self._files: dict[str, str] = {}
        self._whole: set[str] = set()
        """Items that are no functions, such as doctests: pytest itself reads the text of their files."""
        self._gpus: dict[str, int] = {}
        self._used: dict[str, set[Unit]] = defaultdict(set)
        self._reported: dict[str, set[tuple[str, Outcome]]] = defaultdict(set)
        self._durations_s: dict[str, float] = defaultdict(float)
        # Many tests have the same answers.
        self._digests: dict[Unit, str] = {}
        self._imports: dict[frozenset[str], frozenset[Unit]] = {}
        self._choice: Choice | None = None
        self._renamed: Mapping[str, str] = {}
        # For tests that run in this process. Worlds have a folder already.
        self._folder = Path(tempfile.mkdtemp(prefix="disttest-changed-"))
        self._loads.begin()

    def relative(self, path: Path) -> str:
        """Return the name of a file of the project; empty for others."""
        return self._loads.files[str(path)]

    def select(
        self, items: Sequence[pytest.Item], describe: Callable[[pytest.Item], TestCase], config: pytest.Config
    ) -> TestSelection | None:
        """Select the tests that ``--changed`` asks for.

        Raises:
            UsageError: git cannot compare with the revision, or the ranks of the run collect.
        """
        self._loads.end()  # from now on each test is recorded separately
        options = config.stash[RUN].options
        if options.ranks_collect:
            raise UsageError(
                "--changed cannot be combined with SPMD mode, whose ranks import tests by themselves"
            )
        words = keep_pytest_args(invocation_of(config).pytest_args)
        self._read(items, options, config.stash[RUN].host.device, " ".join(words))
        config.pluginmanager.register(TestRecorder(str(self.root), self._folder), RECORDER)
        revision = CHANGED.of(options)
        if revision is None:
            return None
        choice = self._choose(revision, items, describe, CANARIES.of(options))
        self._choice = choice
        # The record has names relative to the repository, and pytest's session node ids.
        own = {key: nodeid for nodeid, key in self._names.items()}
        self.reasons = {own[key]: reason for key, reason in choice.selected.items()}
        return TestSelection(
            kept=frozenset(self.reasons), notes=tuple(("", note) for note in notes_of(choice)), data=choice
        )

    def _read(self, items: Sequence[pytest.Item], options: RunOptions, device: str, pytest_args: str) -> None:
        self._sources = Sources(self.root, self._repository.files())
        for file, units in self._loads.by_module.items():
            self._loads.by_module[file] = set(self._counted(units))
        self._project = project_of_git(self.root)
        self._path: Path = FILE.of(options) or self.root / USUAL
        self._environment = dict(self._facts(options, device))
        self._environment["pytest's arguments"] = digest_of(pytest_args.encode())
        for item in items:
            self._files[item.nodeid] = file = self.relative(item.path)
            if file and not isinstance(item, pytest.Function):
                self._whole.add(item.nodeid)
            # Node ids are relative to pytest's root, the names of files to the repository's.
            rest = item.nodeid.partition("::")[2]
            self._names[item.nodeid] = f"{self._files[item.nodeid] or item.path}::{rest}"

    def _choose(
        self,
        revision: str,
        items: Sequence[pytest.Item],
        describe: Callable[[pytest.Item], TestCase],
        share: float,
    ) -> Choice:
        base = self._repository.base_of(revision)
        changes = self._repository.changes_since(base, self._sources)
        self._renamed = changes.renamed
        record, trouble = read_record(self._path, self._project)
        if trouble:
            return everything(list(self._names.values()), base, trouble)
        # The plugin of flaky tests puts its entries under this key.
        quarantined = {self._names[item.nodeid] for item in items if describe(item).data.get("flaky")}
        return choose(
            list(self._names.values()),
            record,
            changes,
            self._sources,
            environment=self._environment,
            quarantined=quarantined,
            canaries=share,
        )

    def _facts(self, options: RunOptions, device: str) -> Iterator[tuple[str, str]]:
        """Yield facts that every test depends on."""
        yield "python", platform.python_version()
        yield "machine", f"{platform.system()} {platform.machine()} {device}"
        # Not the whole path: some libraries append their folders to it when they are imported.
        installed = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        for distribution in metadata.distributions(path=installed):
            yield f"package {distribution.name}", distribution.version
        for name, value in environment().items():
            # As digests: values may be secrets, and the record may be uploaded as an artifact or a cache.
            if name.startswith(_VARIABLES) and name not in _OF_THIS_MACHINE:
                yield f"variable {name}", digest_of(value.encode())
        own = {option.field for option in OPTIONS}
        # Those of the core that affect a test, such as --seed and --isolation.
        fields = (option.field for option in CORE_OPTIONS if option.repeated)
        given = {field: str(getattr(options, field)) for field in fields if field in options.given}
        for name, value in {**options.plugin_options, **given}.items():
            if name not in own:
                yield f"option {name}", digest_of(value.encode())
        # Settings, lock files and compiled sources have effects that no recorder of Python functions sees.
        for file in self._sources.files:
            path = PurePosixPath(file)
            if path.name in _SETTINGS or any(map(path.match, (*_LOCKS, *_COMPILED))):
                yield f"file {file}", self._sources.digest((file, ""))

    def world_ended(self, folder: Path) -> None:
        """Read the lines of the processes of a world."""
        for test, units in read_lines(folder):
            # Tests that import a module may depend on a result that it has kept since an earlier test.
            (self._used if "::" in test else self._loads.by_module)[test].update(self._counted(units))

    def reported(self, report: pytest.TestReport) -> None:
        """Keep the outcome of a phase of a test."""
        reported = self._reported[report.nodeid]
        if report.outcome in (
            "passed",
            "failed",
            "skipped",
        ):  # not an attempt that is followed by another one
            reported.add((report.when, _outcome_of_phase(report)))
        self._durations_s[report.nodeid] += report.duration

    def describe_tests(self, pairs: Sequence[tuple[pytest.Item, TestCase]]) -> None:
        """Keep how many GPUs each test occupies."""
        for item, test in pairs:
            on_gpus = test.world is not None and test.world.device != "cpu"
            self._gpus[item.nodeid] = test.world.size if test.world is not None and on_gpus else 0

    def finish(self) -> None:
        """Write the record.

        Raises:
            UsageError: it cannot be written.
        """
        self.world_ended(self._folder)
        # read_lines has removed each file that it read, so the folder is empty.
        self._folder.rmdir()
        # A session that ended before its first test must not write a record.
        if not self._reported:
            return
        ran = {self._names[nodeid]: self._ran(nodeid) for nodeid in self._reported if nodeid in self._names}
        misses = [] if self._choice is None else failed_canaries(self._choice, ran)

        def change(record: Record) -> Record:
            return with_run(renamed(record, self._renamed), ran, self._environment, misses)

        update_record(self._path, change, self._project)

    def _ran(self, nodeid: str) -> Ran:
        outcome = outcome_of(self._reported[nodeid])
        units = {self._sources.resolve(unit) for unit in self._used[nodeid]}
        if not units and outcome is not Outcome.SKIPPED:
            units.add(LOST)  # nothing has recorded it, for example another machine
        if nodeid in self._whole:
            units.add((self._files[nodeid], WHOLE))
        own = self._of_imports(frozenset((*self._roots(self._files[nodeid]), *self._unexplained)))
        # A function may import modules when it runs, which the imports of the test's file do not show.
        late = {file for file, _ in units if file.endswith(".py") and (file, MODULE) not in own}
        units |= own | self._of_imports(frozenset(late))
        return Ran(
            units={unit: self._digest(unit) for unit in units},
            outcome=outcome,
            duration_s=self._durations_s[nodeid],
            gpus=self._gpus.get(nodeid, 0),
        )

    def _counted(self, units: Iterable[Unit]) -> Iterator[Unit]:
        """Leave out files such as those of a virtual environment inside of the repository."""
        return (unit for unit in units if unit[0] in self._sources.files or not is_hidden(unit[0]))

    def _digest(self, unit: Unit) -> str:
        if unit not in self._digests:
            # The file was saved while tests ran, so nothing shows which of its versions this test used.
            edited = unit[0].endswith(".py") and self._sources.was_edited(unit[0])
            self._digests[unit] = UNKNOWN if edited else self._sources.digest(unit)
        return self._digests[unit]

    def _of_imports(self, roots: frozenset[str]) -> frozenset[Unit]:
        """Return the code that runs when files and the modules that they import are imported."""
        if roots not in self._imports:
            files = self._sources.closure(roots, self._loads.by_module)
            seen = (unit for file in files for unit in self._loads.by_module.get(file, ()))
            modules = {(file, MODULE) for file in files}
            self._imports[roots] = frozenset(modules.union(map(self._sources.resolve, seen)))
        return self._imports[roots]

    def _roots(self, file: str) -> Iterator[str]:
        yield file
        yield from self._sources.conftests_of(file)

    @cached_property
    def _unexplained(self) -> set[str]:
        """Modules that no test and no conftest imports, such as a plugin of pytest: each test uses them."""
        roots = {root for file in (*self.test_files, *self._files.values()) for root in self._roots(file)}
        return set(self._loads.by_module) - self._sources.closure(roots, self._loads.by_module)


def _outcome_of_phase(report: pytest.TestReport) -> Outcome:
    # The call of pytest.xfail ends a test as that of pytest.skip does; after a mark, the test has run.
    as_marked = report.when == "call" and hasattr(report, "wasxfail") and "xfail" in report.keywords
    return Outcome.PASSED if as_marked and report.skipped else Outcome(report.outcome)
