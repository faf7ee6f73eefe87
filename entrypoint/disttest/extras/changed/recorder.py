"""Notes, in each process that runs tests, which functions and files of the project a test uses.

Each process has its own file: a line for each test, and in a fork of it a line for each new function, because it may end
at any instruction.
"""

from __future__ import annotations

import importlib
import linecache
import os
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import resolve_name
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import msgspec
import pytest

from disttest.extras.changed.memos import remembers
from disttest.extras.changed.sources import ALL_PYTHON, FOLDER, LINK, LOST, MODULE, OF_PATHS, WHOLE, Unit
from disttest.hookspecs import of_pytest

FILES = "changed.*"
"""Pattern of the files that processes write."""
_IMPORTER = "<frozen importlib._bootstrap_external>"
_SPAWNS = ("multiprocessing/popen_spawn_posix.py", "multiprocessing/popen_forkserver.py")
"""Ends of the names of files whose functions start other interpreters, which Python's audit events do not show."""
_SPAWN = "<spawn>"
_DYNAMOS = "torch/_dynamo/symbolic_convert.py"
"""End of the name of the file whose method ``inline_call_`` compiles a function into its caller."""
_DYNAMO = "<dynamo>"
_IMPORT_MODULE = importlib.import_module.__code__
_MOST_STARTS = 50
"""Starts in one test of a function that keeps results, after which it is not followed: each costs reports of all others."""
_CALLERS = ("_pytest/python.py", "_pytest/fixtures.py", "_pytest/unittest.py")
"""Ends of the names of files whose functions call tests and fixtures."""
_HARMLESS = frozenset(
    ("git", "uname", "cc", "c++", "gcc", "g++", "ld", "ldconfig", "nvidia-smi", "lscpu", "nproc")
)
"""Programs that run no code of the project."""
_TOOL, _OWNER = 3, "disttest"
"""A tool of ``sys.monitoring`` that Python has reserved for none, and the name under which it is used here."""


class Tracer:
    """Calls a function with each Python function that starts, in every thread.

    Args:
        on_start: receives the code; returns whether it must receive the same code again before the next :meth:`start`.
    """

    # sys.monitoring turns itself off for a function that it has reported, and costs nothing from then on.
    # Before Python 3.12 a trace function, which coverage and debuggers need for themselves: they have precedence. A profile
    # function would leave it to them, but an audit hook together with one crashes CPython 3.11.2 in a garbage collection.
    if sys.version_info >= (3, 12):

        def __init__(self, on_start: Callable[[CodeType], bool]) -> None:
            # A process may end while a test runs, and the modules are gone when its last functions start.
            disable = sys.monitoring.DISABLE

            def on_code(code: CodeType, _offset: int) -> object:
                return None if on_start(code) else disable

            self._on_code = on_code

        def start(self) -> None:
            """Begin, or report functions again that were reported before."""
            monitoring = sys.monitoring
            # Another tool may hold the number. It keeps it, and stop() reports that functions were missed.
            if monitoring.get_tool(_TOOL) is None:
                monitoring.use_tool_id(_TOOL, _OWNER)
            if monitoring.get_tool(_TOOL) == _OWNER:
                self._report(self._on_code)
                monitoring.restart_events()

        def stop(self) -> bool:
            """End; return whether all calls were reported."""
            if sys.monitoring.get_tool(_TOOL) != _OWNER:
                return False
            # A test that uses sys.monitoring may have switched the events of this tool off.
            intact = bool(sys.monitoring.get_events(_TOOL))
            self._report(None)  # a tool that is only freed is still called (Python 3.12, 3.13)
            sys.monitoring.free_tool_id(_TOOL)
            return intact

        def _report(self, on_code: Callable[[CodeType, int], object] | None) -> None:
            events = sys.monitoring.events
            for event in (events.PY_START, events.PY_RESUME):
                sys.monitoring.register_callback(_TOOL, event, on_code)
            sys.monitoring.set_events(_TOOL, events.PY_START | events.PY_RESUME if on_code else 0)

    else:

        def __init__(self, on_start: Callable[[CodeType], bool]) -> None:
            reported: dict[str, set[str]] = defaultdict(set)

            def on_event(frame: FrameType, _event: str, _argument: object) -> None:
                # Every call costs this, so a function that was reported returns early. It is known by its names: id() and each
                # attribute of a frame call the audit hook, and the hash of a code object covers all its constants.
                code = frame.f_code
                if code.co_qualname not in reported[code.co_filename] and not on_start(code):
                    reported[code.co_filename].add(code.co_qualname)
                # Of calls only: None asks for no events of lines.

            self._on_event, self._reported = on_event, reported

        def start(self) -> None:
            """Begin, or report functions again that were reported before."""
            self._reported.clear()
            # threading.settrace reaches threads that start from now on. Python 3.12 added
            # settrace_all_threads for the others.
            if sys.gettrace() is None:
                threading.settrace(self._on_event)
                sys.settrace(self._on_event)

        def stop(self) -> bool:
            """End; return whether all calls were reported: another trace function may be set, or may have been."""
            self._reported.clear()
            if sys.gettrace() is not self._on_event:
                return False
            sys.settrace(None)
            threading.settrace(None)
            return True


def is_hidden(file: str) -> bool:
    """Return whether a file is in a place where few files belong to the project: virtual environments, caches."""
    return any(part.startswith(".") or part in ("site-packages", "__pycache__") for part in file.split("/"))


class ProjectFiles(dict[str, str]):
    """Name of a file -> its name relative to the root; empty for files that do not belong to the project."""

    def __init__(self, root: str) -> None:
        self._prefix = f"{root}/"
        self.links: dict[str, set[str]] = {}
        """Name of a file -> the symbolic links of the project that it leads through, if there are any."""

    def __missing__(self, name: str) -> str:
        if name.endswith(_SPAWNS):
            return _SPAWN
        if name.endswith(_DYNAMOS):
            return _DYNAMO
        # Kept, so that each later call of the file costs one lookup in C. Names such as `<string>` and
        # `<frozen importlib._bootstrap>` belong to no file.
        file = self[name] = self._relative(os.path.realpath(name)) if name.startswith("/") else ""
        if (file or name.startswith(self._prefix)) and (links := set(self._links(name)) - {""}):
            self.links[name] = links
        return file

    def below_root(self, path: str) -> str:
        """Return the name of a file relative to the root, also of a hidden one; empty if it is elsewhere."""
        return path.removeprefix(self._prefix) if path.startswith(self._prefix) else ""

    def _relative(self, path: str) -> str:
        relative = self.below_root(path)
        return "" if is_hidden(relative) else relative

    def _links(self, name: str) -> Iterator[str]:
        seen, waiting = set(), [Path(name)]
        while waiting:
            path = waiting.pop()
            for each in (path, *path.parents):
                try:
                    target = each.readlink()
                except (OSError, ValueError):  # most are no links
                    continue
                # Path.resolve raises an error for a loop of links.
                place = Path(os.path.realpath(each.parent), each.name)
                if place not in seen:
                    seen.add(place)
                    waiting.append(place.parent / target)
                    yield self._relative(str(place))


class Watch:
    """Receives functions and files of the project.

    Args:
        root: root of the repository.
        once: whether each function counts once for each test.
    """

    def __init__(self, root: str, *, once: bool) -> None:
        self.files = ProjectFiles(root)
        self.tracer = Tracer(self.on_start)
        self._once = once
        self._inlined: dict[tuple[str, str], set[Unit]] = defaultdict(set)
        """File and name of a compiled function -> the functions of the project that were compiled into it."""

    def begin(self) -> None:
        """Start watching this process."""
        # The tracer sees functions only. Files that they open and programs that they start appear as audit
        # events.
        _audit(self)
        self.tracer.start()

    def end(self) -> bool:
        """Stop; return whether nothing was missed."""
        _watching.clear()
        return self.tracer.stop()

    def on_start(self, code: CodeType) -> bool:
        """Receive a function that starts; return whether its next start counts, too."""
        if code is _IMPORT_MODULE:
            return self._imports(code)
        file = self.files[code.co_filename]
        if file == _DYNAMO:
            return self._inlines(code)
        if self._inlined:
            for unit in self._inlined.get((code.co_filename, code.co_qualname), ()):
                self.use(unit)
        if file:
            self.use(ALL_PYTHON if file == _SPAWN else (file, code.co_qualname))
            self._use_links(code.co_filename)
        return bool(file) and not self._once

    def _inlines(self, code: CodeType) -> bool:
        """Receive a function that torch.compile reads and never starts, if this function of torch compiles one."""
        if code.co_name != "inline_call_":
            if not _has_inline_call():
                self.use(LOST)
            return False
        # torch lists the functions that it has compiled only within the compilation (torch 2.9 to 2.15).
        frame = _frame_of(code)
        try:
            translator: Any = frame.f_locals["self"] if frame else None
            inlined, root = translator.f_code, translator.output.root_tx.f_code
        except (AttributeError, KeyError):  # of another torch
            self.use(LOST)
            return True
        if file := self.files[inlined.co_filename]:
            unit = (file, inlined.co_qualname)
            # A later test of this process calls the compiled function, which is not compiled again.
            self._inlined[root.co_filename, root.co_qualname].add(unit)
            self.use(unit)
        return True

    def _imports(self, code: CodeType) -> bool:
        """Receive a module by its name: the code of one that an earlier test or file has imported does not start again."""
        frame = _frame_of(code)
        with suppress(AttributeError, ImportError):  # the name is not valid
            name = resolve_name(frame.f_locals["name"], frame.f_locals["package"]) if frame else ""
            file = self.files[str(getattr(sys.modules.get(name), "__file__", ""))]
            if file:
                self.use((file, MODULE))
        return True

    def use(self, unit: Unit) -> None:
        """Receive a part of the project that is used."""
        raise NotImplementedError

    def opened(self, name: object, part: str) -> None:
        """Receive a file that is read, or a folder that is listed."""
        # A descriptor (open(3), os.listdir(4)) has been opened by its name before.
        if isinstance(name, (str, bytes, os.PathLike)):
            path = str(Path(os.fsdecode(name)).absolute())
            # ChangedSession drops hidden files that git does not list.
            file = self.files[path] or self.files.below_root(os.path.realpath(path))
            if file:
                self.use((file, part))
            self._use_links(path)

    def _use_links(self, name: str) -> None:
        for link in self.files.links.get(name, ()):
            self.use((link, LINK))

    def started(self, words: list[str], folder: str = "") -> None:
        """Receive a program that is started, with its arguments and its working directory."""
        # Libraries such as torch, triton and ctypes.util start these. Without the list their tests would
        # depend on all files.
        if Path(words[0]).name not in _HARMLESS:
            self.use(ALL_PYTHON)
            for word in words:
                self.opened(Path(folder, word), WHOLE)


class LoadRecorder(Watch):
    """Notes what runs while tests are collected: once for all tests, so for each module that causes it.

    Args:
        root: root of the repository.
    """

    def __init__(self, root: str) -> None:
        super().__init__(root, once=False)
        self.by_module: dict[str, set[Unit]] = defaultdict(set)
        """File -> parts that its import or its collection uses."""

    def use(self, unit: Unit) -> None:
        """Attribute a part to the module that is being imported, or to the file of the outermost frame."""
        # inspect.currentframe has no depth, and inspect.stack reads source files (Python 3.11 to 3.13).
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
        # From the inside out: the nearest module that is being imported is the cause, and otherwise the
        # outermost file.
        owner = ""
        own = unit[1] == MODULE
        while frame is not None:
            file = self.files[frame.f_code.co_filename]
            # The first frame is that of the module that starts. Its importer comes behind it.
            if own and file == unit[0]:
                own = False
            elif file:
                owner = file
                if frame.f_code.co_name == MODULE:
                    break
            frame = frame.f_back
        # pytest itself reads the files of tests, and its settings.
        if owner or unit[1] not in OF_PATHS:
            self.by_module[owner or unit[0]].add(unit)


class TestRecorder(Watch):
    """Notes the parts that each test uses, in one process and its forks. It is a plugin of pytest there.

    Args:
        root: root of the repository.
        folder: folder for the files of processes.
    """

    __test__ = False

    def __init__(self, root: str, folder: Path) -> None:
        super().__init__(root, once=True)
        self._file = str(folder / FILES[:-1])
        self._test = ""
        self._used: set[Unit] = set()
        self._by_fixture: dict[pytest.FixtureDef[Any], set[Unit]] = defaultdict(set)
        self._memos: dict[tuple[str, str], bool] = {}
        """File and name of a function -> whether it may keep a result for later calls."""
        self._begun: dict[tuple[str, str], str] = {}
        """Such functions that this test has called -> file, relative to the root."""
        self._starts: Counter[tuple[str, str]] = Counter()
        """Such functions -> starts in this test."""
        self._by_module: dict[str, set[Unit]] = defaultdict(set)
        """File -> parts that such functions of it used in this test."""
        self._is_fork = False
        # Python cannot remove such a handler, so it looks at the present watch.
        os.register_at_fork(after_in_child=self._in_fork)

    def on_start(self, code: CodeType) -> bool:
        """Receive a function that starts, which may keep its result."""
        again = super().on_start(code)
        name = (code.co_filename, code.co_qualname)
        file = self.files[code.co_filename]
        if not file or file in (_DYNAMO, _SPAWN) or not self._remembers(name, code):
            return again
        self._begun[name] = file
        self._starts[name] += 1
        self.tracer.start()  # report functions that the test has used already, too
        return self._starts[name] < _MOST_STARTS

    def _remembers(self, name: tuple[str, str], code: CodeType) -> bool:
        if name not in self._memos:
            frame = _frame_of(code)
            self._memos[name] = frame is not None and code.co_name != MODULE and remembers(frame)
        return self._memos[name]

    def use(self, unit: Unit) -> None:
        """Note a part."""
        if self._begun:
            self._attribute(unit)
        # A fork may end at any instruction (os._exit, a signal), so it writes each part when it is used.
        if unit not in self._used:
            self._used.add(unit)
            if self._is_fork:
                self._write([unit])

    def _attribute(self, unit: Unit) -> None:
        """Note a part for all tests that import a function that runs now and may keep its result."""
        # inspect.currentframe has no depth, and inspect.stack reads source files (Python 3.11 to 3.13).
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
        while frame is not None:
            # Every function of the stack that keeps results may keep this one, not only the innermost.
            code = frame.f_code
            if file := self._begun.get((code.co_filename, code.co_qualname)):
                self._by_module[file].add(unit)
            # Frames above pytest's callers belong to pytest, not to the test.
            frame = None if code.co_filename.endswith(_CALLERS) else frame.f_back

    def _in_fork(self) -> None:
        if _watching:
            self._is_fork, self._used = True, set()

    def _write(self, units: list[Unit], owner: str = "") -> None:
        line = msgspec.json.encode((owner or self._test, units)) + b"\n"
        # A test may close every descriptor, so none is kept open.
        descriptor = os.open(
            f"{self._file}{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        try:
            # One write with O_APPEND, since threads of this process may write at the same time.
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    @of_pytest(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Record a test."""
        self._test, self._used = item.nodeid, set()
        self._begun.clear()
        self._starts.clear()
        self._by_module.clear()
        # inspect.getsource opens each file only once in a process; torch.jit.script and others compile its text.
        for name in [name for name in linecache.cache if self.files[name]]:
            del linecache.cache[name]
        self.begin()
        try:
            with _watched_fixtures(self._uses_fixture):
                return (yield)
        finally:
            # Another trace function or tool took over: parts may be missing, so the test runs whatever
            # changes.
            if not self.end():
                self._used.add(LOST)
            # A fork that returns into pytest has written its parts one by one.
            if not self._is_fork:
                self._write(sorted(self._used))
                for file, units in self._by_module.items():
                    self._write(sorted(units), file)

    def _uses_fixture(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        for unit in self._by_fixture.get(fixturedef, ()):
            self.use(unit)

    @of_pytest(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        """Record a fixture that later tests of this process share; they use the parts that its set-up used."""
        if fixturedef.scope == "function":
            return (yield)
        # The set-up gets an empty set, so that exactly its parts are kept for the tests that share the
        # fixture.
        before, self._used = self._used, set()
        self.tracer.start()  # report functions that the test has used already, too
        try:
            return (yield)
        finally:
            self._by_fixture[fixturedef] |= self._used
            self._used |= before


@contextmanager
def _watched_fixtures(on_use: Callable[[pytest.FixtureDef[Any]], None]) -> Iterator[None]:
    """Report fixtures that a test uses, also those that have a value already and those that it names only as it runs."""
    # pytest calls a hook for the first test alone, and keeps no public list of the others (8.4 to 9.2).
    execute = pytest.FixtureDef.execute

    def reported(self: pytest.FixtureDef[Any], request: Any) -> object:
        __tracebackhide__ = True
        try:
            return execute(self, request)
        finally:
            on_use(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pytest.FixtureDef, "execute", reported)
        yield


def _has_inline_call() -> bool:
    """Return whether torch.compile has the method by which it reads functions; True while it is being imported."""
    module: Any = sys.modules.get("torch._dynamo.symbolic_convert")
    translator = getattr(module, "InliningInstructionTranslator", None)
    return hasattr(translator, "inline_call_") or getattr(module.__spec__, "_initializing", False)


def _frame_of(code: CodeType) -> FrameType | None:
    """Return the frame of a function that is just being reported."""
    # inspect.currentframe has no depth, and inspect.stack reads source files (Python 3.11 to 3.13).
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame


def read_lines(folder: Path) -> Iterator[tuple[str, list[Unit]]]:
    """Yield the lines of the processes of a world: a test, or the file of a function that may keep its result, and its parts.

    A cut line was the last of a test that failed.
    """
    for path in folder.glob(FILES):
        for line in path.read_bytes().splitlines():
            try:
                yield msgspec.json.decode(line, type=tuple[str, list[Unit]])
            except msgspec.DecodeError:
                continue
        # Removed, so that ChangedSession.finish can remove the folder of the pytest process.
        path.unlink()


_watching: list[Watch] = []
"""The watch of this process. The hook of Python, which cannot be removed, does nothing without one."""
_has_hook: list[bool] = []


def _audit(watch: Watch) -> None:
    _watching[:] = [watch]
    if not _has_hook:
        _has_hook.append(True)
        sys.addaudithook(_on_audit)


# Arguments, as https://docs.python.org/3/library/audit_events.html has them: open (path, mode, flags),
# os.listdir (path), subprocess.Popen (executable, args, cwd, env), os.posix_spawn and os.exec (path, args,
# env), os.system (command).
def _on_audit(event: str, arguments: tuple[Any, ...]) -> None:
    # Python calls the hook for each attribute of a frame and each id(), so the usual case is one lookup.
    if event not in _EVENTS or not _watching:
        return
    watch = _watching[0]
    match event:
        case "open":
            path, _mode, flags = arguments
            # A file that is opened with O_TRUNC is empty before it can be read.
            reads = flags & os.O_ACCMODE != os.O_WRONLY and not flags & os.O_TRUNC
            # The caller shows whether Python opens a module; inspect.stack reads source files (Python 3.11 to 3.13).
            by_importer = sys._getframe(1).f_code.co_filename == _IMPORTER  # noqa: SLF001
            # Data files come through the importer, too (pkgutil.get_data).
            if reads and not (by_importer and str(path).endswith((".py", ".pyc"))):
                watch.opened(path, WHOLE)
        case "sqlite3.connect" | "ctypes.dlopen":
            watch.opened(arguments[0], WHOLE)
        case "os.listdir" | "os.scandir":
            watch.opened(arguments[0] or ".", FOLDER)
        case "subprocess.Popen" | "os.posix_spawn" | "os.exec" | "os.system":
            # Popen accepts a text or a path in the place of a list.
            words = arguments[1] if len(arguments) > 1 else arguments[0]
            words = [words] if isinstance(words, (str, bytes, os.PathLike)) else list(words)
            folder = arguments[2] if event == "subprocess.Popen" else None
            watch.started([os.fsdecode(word) for word in words] or ["?"], os.fsdecode(folder or ""))


_EVENTS = frozenset(
    {
        *("open", "sqlite3.connect", "ctypes.dlopen", "os.listdir", "os.scandir"),
        *("subprocess.Popen", "os.posix_spawn", "os.exec", "os.system"),
    }
)
