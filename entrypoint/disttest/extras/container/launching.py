"""A launch from beginning to end, which combines all parts.

The run inside the container writes reports, outputs and summary itself unless it is killed. Its journal is on this host, so
in that case the launcher records the end in the journal and makes everything from it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException, NotFound
from msgspec import structs

from disttest.cli.stored_run import stored_runs
from disttest.clock import monotonic, sleep
from disttest.errors import DisttestError, EngineError, ExitCode, UsageError
from disttest.extras.container.container_spec import LaunchSpec, container_arguments
from disttest.extras.container.derived import with_project, with_requirements
from disttest.extras.container.engine import (
    EngineFacts,
    ask_engine,
    engine_errors,
    ensure_image,
    explain,
    find_engine,
)
from disttest.extras.container.gpus import NONE, HostGpu
from disttest.extras.container.launch_host import Host
from disttest.extras.container.left_containers import MARK, RESULTS, WORKING_DIR, job_of, leftovers
from disttest.extras.container.limits import CONTAINER_STOP_S, OUT_OF_MEMORY_S
from disttest.extras.container.options import LaunchOptions
from disttest.extras.container.ownership import (
    HandBack,
    give_to_owner_above,
    hand_back,
    hand_back_of,
    make_folder,
    make_lease_folder,
)
from disttest.extras.container.prepare import Prepared, prepare
from disttest.extras.container.supervise import (
    SIGKILL_CODE,
    ContainerOutcome,
    Interrupted,
    SignalSwitch,
    catch_signals,
    supervise,
)
from disttest.extras.container.user_project import Project, read_project
from disttest.host.proc import ProcessIdentity, this_process
from disttest.limits import TICK_S
from disttest.model import Frozen
from disttest.options.project_file import chosen_path
from disttest.options.registry import RUN_OPTIONS
from disttest.plugin_manager import plugin_manager
from disttest.reports.write import write_reports
from disttest.results.conclusion import Facts, conclude
from disttest.results.directory import DirectoryInUse, no_run_writes
from disttest.results.events import RunFinished
from disttest.results.fold import DIED_EARLY, RunResult, fold
from disttest.results.journal import FILE_NAME, Journal, read_events

# Ends that the run inside does not see: it was killed, the engine went away, or the container's timer struck.
# Outputs that it published before belong to no such end.
_INSIDE_PUBLISHES_NOTHING = (SIGKILL_CODE, ExitCode.ENGINE, ExitCode.DEADLINE)
_RESULTS = next(option for option in RUN_OPTIONS if option.name == "results")


class Aftermath:
    """Completes a launch: reports, outputs and summary.

    Args:
        results: results directory on this host; None: the newest one of the working directory.
        working_dir: folder in which the run starts.
        environ: environment of the command, with GitHub's files.
        say: prints a line for the user.
    """

    def __init__(
        self, results: Path | None, working_dir: Path, environ: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        # Otherwise the run inside chooses: by the variable, by the project, or the newest.
        named = None if results else chosen_path(_RESULTS, None, [str(working_dir)])
        self._results = working_dir / named if named else results
        self._working_dir = working_dir
        self._environ = environ
        self._say = say
        # Noted before the start: earlier steps append to these files.
        self._published = self._size("GITHUB_OUTPUT")
        self._summarized = self._size("GITHUB_STEP_SUMMARY")
        self.note_earlier_runs()

    def note_earlier_runs(self) -> None:
        """Note the journals that are not of this launch: call it again after a change of one."""
        self._before = {_stamp(folder) for folder in _folders(self._results, self._working_dir)}

    def settle(self, code: int, reason: str = "") -> None:
        """Make journal, reports, outputs and summary agree with the end of the launch.

        Args:
            code: exit code of the launch.
            reason: reason of an early end; empty if the run's own reason counts.
        """
        with contextlib.ExitStack() as held:
            self._settle(self._own_folder(held), code, reason)

    def _settle(self, folder: Path | None, code: int, reason: str) -> None:
        run = _read(folder, self._say) if folder else None
        has_published = self._size("GITHUB_OUTPUT") > self._published
        if folder is None or run is None:
            if not has_published or code in _INSIDE_PUBLISHES_NOTHING:
                self._publish("disttest_run_finished", run=None, results=None, exit_code=code)
            return
        # The run inside did not conclude, or the launcher saw another end than its journal has.
        if run.reason == DIED_EARLY or (reason and run.exit_code != code):
            run = _rewrite(folder, run, code, reason, self._say)
            self._forget_summary()
            self._publish("disttest_show_summary", run=run, results=folder)
        elif has_published or not self._environ.get("GITHUB_OUTPUT"):
            return  # the run inside has told the plugins its end, and no file shows that it could not
        self._publish("disttest_run_finished", run=run, results=folder, exit_code=code)

    def _publish(self, hook: str, **arguments: Any) -> None:
        for _, message in plugin_manager().items(hook, str, environ=self._environ, **arguments):
            self._say(message)

    def _own_folder(self, held: contextlib.ExitStack) -> Path | None:
        """Find the folder of the run inside, and keep other runs out of it; None if it wrote no journal."""
        folders = _folders(self._results, self._working_dir)
        return _first_free((each for each in folders if _stamp(each) not in self._before), held)

    def _forget_summary(self) -> None:
        """Remove the summary that the run inside wrote for the workflow's page: it reports another end."""
        if file := self._environ.get("GITHUB_STEP_SUMMARY"):
            with contextlib.suppress(OSError):
                os.truncate(file, self._summarized)

    def _size(self, variable: str) -> int:
        file = self._environ.get(variable)
        try:
            return Path(file).stat().st_size if file else 0
        except OSError:
            return 0


def rebuild_left_run(results: Path | None, working_dir: Path, say: Callable[[str], None]) -> None:
    """Write the reports of a run whose container was removed because its launcher is gone.

    A run that ended normally has its own reports. Another run that writes into the directory now keeps it.
    """
    # The results of an earlier launch must not keep this one from starting.
    with contextlib.suppress(DisttestError, OSError), contextlib.ExitStack() as held:
        folder = _first_free(_folders(results, working_dir), held)
        run = _read(folder, say) if folder else None
        # A journal with an end has its reports: the run inside wrote them.
        if folder is not None and run is not None and run.reason == DIED_EARLY:
            reason = "the launcher was killed; the next launch removed its container"
            _rewrite(folder, run, SIGKILL_CODE, reason, say)
            say(f"wrote the reports of that launch into {folder}")


def _folders(results: Path | None, working_dir: Path) -> list[Path]:
    """List the folders with a journal in which the run of a launch may have written, newest first."""
    folders = [results] if results else stored_runs(working_dir)
    return [folder.absolute() for folder in folders if _stamp(folder)]


def _first_free(folders: Iterable[Path], held: contextlib.ExitStack) -> Path | None:
    """Return the first folder that no run holds, and keep runs out of it until the stack is closed."""
    for folder in folders:
        try:
            held.enter_context(no_run_writes(folder))
        except DirectoryInUse:
            # The run of another launch, which goes on: its journal has no end yet, and must not get one here.
            continue
        except OSError:
            pass  # reading its journal reports the reason
        return folder
    return None


def _stamp(folder: Path) -> tuple[int, int] | None:
    """Return inode and time of the journal in a folder; None if there is none."""
    try:
        found = (folder / FILE_NAME).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _read(folder: Path, say: Callable[[str], None]) -> RunResult | None:
    try:
        return fold(read_events(folder / FILE_NAME))
    except (DisttestError, OSError) as error:
        say(f"cannot read the journal: {error}")
        return None


def _rewrite(folder: Path, run: RunResult, code: int, reason: str, say: Callable[[str], None]) -> RunResult:
    """Record the end in the journal, and write the reports from it."""
    try:
        with contextlib.closing(Journal(folder / FILE_NAME)) as journal:
            # A killed writer leaves a line without its end, and the next event would continue it.
            journal.end_line()
            journal.append(RunFinished(at_s=run.ended_at_s, exit_code=code, reason=reason))
            run = fold(journal.events())
        for path in write_reports(run, folder):
            give_to_owner_above(path)
    except (DisttestError, OSError) as error:
        say(f"cannot write reports from the journal: {error}")
    return run


NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""Exit codes of ``timeout`` and of shells."""
LIMITS_REFUSED = "[ulimit-refused]"
_STOPPED = (SIGKILL_CODE, 128 + signal.SIGTERM)
Say = Callable[[str], None]


class LaunchEnd(Frozen):
    """End of a launch."""

    code: int
    reason: str = ""
    """Reason of an early end; empty if the run's own reason counts."""


def launch(options: LaunchOptions, host: Host, *, say: Say) -> int:
    """Start the image, supervise it, and return the exit code of the run inside.

    The outputs of the step are published whatever ends the launch.

    Raises:
        DisttestError: the launch itself failed; EngineError if the engine refused.
    """

    aftermath = Aftermath(options.results, options.working_dir, host.environ, say)
    # The value that is reported if an exception of disttest's own ends the launch.
    end = LaunchEnd(code=ExitCode.INTERNAL, reason="the launcher failed")
    with catch_signals() as switch:
        try:
            end = _launch(options, host, aftermath, switch, say)
        except DisttestError as error:
            end = LaunchEnd(code=error.exit_code, reason=str(error).splitlines()[0])
            raise
        finally:
            switch.ignore()  # writing reports takes less time than a runner gives
            aftermath.settle(end.code, end.reason)
    return end.code


def _launch(
    options: LaunchOptions, host: Host, aftermath: Aftermath, switch: SignalSwitch, say: Say
) -> LaunchEnd:
    # A mistake in --project is reported without an engine.
    project = read_project(options.project) if options.project else None
    try:
        with contextlib.closing(_engine(options, host)) as client:
            me = this_process()
            try:
                # First, because containers of dead launches may still hold GPUs that this launch needs.
                _reap(client, me, host, say)
                prepared = _prepare(options, host, client, me)
                if prepared.spec.gpus.warning:
                    say(f"warning: {prepared.spec.gpus.warning}")
                ensure_image(client, prepared.spec.image, policy=options.pull, say=say)
                prepared = _with_layers(client, prepared, options.requirements, project, say)
            finally:
                # Journals that were written until here are of dead and of other launches, also if this one starts no run.
                aftermath.note_earlier_runs()
            return _run(client, prepared, options, host, switch, say)
    except Interrupted as interrupted:
        code, reason = conclude(Facts(signal=interrupted.signum))
        return LaunchEnd(code=code, reason=reason)


def preview(options: LaunchOptions, host: Host) -> Prepared:
    """Return what :func:`launch` would start. Nothing is started, pulled or removed.

    Raises:
        DisttestError: as for :func:`launch`.
    """
    with contextlib.closing(_engine(options, host)) as client:
        return _prepare(options, host, client, this_process())


def _engine(options: LaunchOptions, host: Host) -> docker.DockerClient:
    return find_engine(chosen=options.engine, environ=host.environ, uid=host.uid, home=host.home)


def _prepare(
    options: LaunchOptions, host: Host, client: docker.DockerClient, me: ProcessIdentity
) -> Prepared:
    facts = ask_engine(client)
    return prepare(
        options,
        environ=host.environ,
        facts=facts,
        host_gpus=_host_gpus(options, facts, host),
        client=me,
        now_s=host.now(),
        version=host.version,
    )


def _with_layers(
    client: docker.DockerClient,
    prepared: Prepared,
    requirements: Path | None,
    project: Project | None,
    say: Say,
) -> Prepared:
    image = prepared.spec.image
    if requirements is not None:
        image = with_requirements(client, image, requirements, say)
    if project is not None:
        image = with_project(client, image, project, say)
    return structs.replace(prepared, spec=structs.replace(prepared.spec, image=image))


def _host_gpus(options: LaunchOptions, facts: EngineFacts, host: Host) -> tuple[HostGpu, ...] | None:
    """Find the host's GPUs; None if the engine is on another host, empty without a query if no GPU is wanted."""
    if not facts.local:
        return None
    return () if options.gpus == NONE else host.find_gpus()


def _run(
    client: docker.DockerClient,
    prepared: Prepared,
    options: LaunchOptions,
    host: Host,
    switch: SignalSwitch,
    say: Say,
) -> LaunchEnd:
    spec = prepared.spec
    # A bind mount needs its source, and a folder that the engine creates belongs to root.
    for folder in (options.results, options.cache):
        if folder is not None:
            make_folder(folder)
    if options.lease_dir is not None:
        make_lease_folder(options.lease_dir)
    try:
        outcome = _run_container(client, prepared, switch, say)
    except EngineError as error:
        # A CPU run does not need the limits, and NCCL reports what it lacks.
        if not spec.raise_limits or LIMITS_REFUSED not in str(error):
            raise
        say(
            "warning: the engine cannot raise the memlock and stack limits, which NCCL may need [ulimit-refused]"
        )
        # Only the start of a container shows whether the engine may raise limits; one in a container may not.
        spec = structs.replace(spec, raise_limits=False)
        outcome = _run_container(client, structs.replace(prepared, spec=spec), switch, say)
    if outcome.code in _STOPPED and not outcome.signum and not outcome.out_of_memory:
        # An engine that is shut down stops its containers first: it no longer answers, which is the cause.
        _engine(options, host).close()
    if outcome.code in (NOT_EXECUTABLE, NOT_FOUND):
        raise UsageError(
            f"image {spec.image} has no executable command disttest; build it from the released image [image-empty]"
        )
    end = end_of(outcome, spec)
    if end.reason:
        say(end.reason)
    return end


def _run_container(
    client: docker.DockerClient, prepared: Prepared, switch: SignalSwitch, say: Say
) -> ContainerOutcome:
    """Create, supervise and remove the container. Files change owners on every way out."""
    with engine_errors(f"creating a container of {prepared.spec.image}"):
        container = client.containers.create(**container_arguments(prepared.spec))
    try:
        outcome = supervise(container, write=write_through, switch=switch)
        # Asked before the removal in `finally`, after which the engine no longer has the state.
        if outcome.code == SIGKILL_CODE and ran_out_of_memory(container):
            outcome = structs.replace(outcome, out_of_memory=True)
        return outcome
    finally:
        # Signals must not interrupt the clean-up. It has a time limit, and the runner's SIGKILL comes anyway.
        switch.ignore()
        _remove(container)
        if prepared.hand_back is not None:
            _hand_back_quietly(client, prepared.spec.image, prepared.hand_back, say)
        switch.deliver_to(None)


def end_of(outcome: ContainerOutcome, spec: LaunchSpec) -> LaunchEnd:
    """Derive the end of the launch. The run's own code counts unless it was killed or exceeded the time limit."""
    if outcome.killed and outcome.signum:
        code, reason = conclude(Facts(signal=outcome.signum))
        return LaunchEnd(
            code=code,
            reason=f"{reason}, the container did not end within {CONTAINER_STOP_S:g} s and was killed",
        )
    if outcome.out_of_memory:
        whose = f"{spec.memory_bytes >> 20:,} MiB, --memory" if spec.memory_bytes else "all of the machine"
        reason = f"the container ran out of memory ({whose}); raise it, or run fewer ranks at the same time (--slots)"
        return LaunchEnd(code=ExitCode.INTERNAL, reason=f"{reason} [engine-memory]")
    # Both codes: the run inside ends by itself at its limit, or is killed if it does not.
    if outcome.code in (SIGKILL_CODE, ExitCode.DEADLINE) and outcome.lasted_s >= spec.time_limit_s:
        reason = f"the container's time limit of {spec.time_limit_s:g} s passed (--time-limit)"
        return LaunchEnd(code=ExitCode.DEADLINE, reason=reason)
    if outcome.code == SIGKILL_CODE:
        return LaunchEnd(code=outcome.code, reason="the container was killed from outside")
    return LaunchEnd(code=outcome.code)


def write_through(out: bytes | None, err: bytes | None) -> None:
    """Pass the container's output on as it arrives."""
    for stream, data in ((sys.stdout, out), (sys.stderr, err)):
        if data:
            stream.buffer.write(data)
            # Without the flush the log of a CI job would lag behind the run.
            stream.buffer.flush()


def ran_out_of_memory(container: docker.models.containers.Container) -> bool:
    """Whether a killed container ran out of memory, which the engine may report later than its end."""
    deadline_s = monotonic() + OUT_OF_MEMORY_S
    with contextlib.suppress(DockerException, requests.RequestException):
        while True:
            container.reload()
            if container.attrs["State"].get("OOMKilled"):
                return True
            if monotonic() >= deadline_s:
                return False
            sleep(TICK_S)
    return False


def _remove(container: docker.models.containers.Container) -> None:
    with contextlib.suppress(DockerException, requests.RequestException):
        # v removes its anonymous volumes too, which would stay on the disk.
        container.remove(force=True, v=True)


def _hand_back_quietly(client: docker.DockerClient, image: str, task: HandBack, say: Say) -> None:
    try:
        hand_back(client, image, task)
    except EngineError as error:
        say(f"warning: {error}")


def _reap(client: docker.DockerClient, me: ProcessIdentity, host: Host, say: Say) -> None:
    """Remove leftovers of dead launches. It is not an error if another launch does so at the same time."""
    with engine_errors("looking for leftovers"):
        # The low-level call: `containers.list` inspects each one, and fails if one vanishes meanwhile.
        ours = client.api.containers(all=True, filters={"label": f"{MARK}=1"})
    labels = {container["Id"]: container.get("Labels") or {} for container in ours}
    # By id, since the tag of the image may have moved since that launch.
    images = {container["Id"]: container.get("ImageID", "") for container in ours}
    job = job_of(host.environ)
    for container_id, reason in leftovers(labels.items(), client=me, job=job, now_s=host.now()):
        try:
            client.api.remove_container(container_id, force=True, v=True)
            say(f"removed container {container_id[:12]} of an earlier launch: {reason}")
        except (NotFound, APIError) as error:
            # 404: another launch has removed it. 409: another launch is removing it.
            if getattr(error.response, "status_code", 0) not in (404, 409):
                say(f"warning: container {container_id[:12]} could not be removed: {explain(str(error))}")
            continue
        # After the removal: until then the container could still write files of root.
        task = hand_back_of(labels[container_id])
        if task is not None:
            with contextlib.suppress(EngineError):
                hand_back(client, images[container_id], task)
        _rebuild(labels[container_id], say)


def _rebuild(labels: Mapping[str, str], say: Say) -> None:

    if WORKING_DIR in labels:  # missing in containers of older versions
        results = Path(labels[RESULTS]) if RESULTS in labels else None
        rebuild_left_run(results, Path(labels[WORKING_DIR]), say)
