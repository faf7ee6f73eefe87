"""Examine a machine: detect its hardware, judge it, run the preflight, and render the diagnosis."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

import disttest
from disttest.errors import ExitCode, PluginError
from disttest.host.findings import DeviceFinding, Grade
from disttest.model import Cause, Frozen, Outcome, TestCase, TestResult
from disttest.plugin_manager import plugin_manager
from disttest.plugins.gpus.detect import detect_machine
from disttest.plugins.gpus.device_findings import judge_machine
from disttest.plugins.gpus.leases.lease import Leaser, SlotState
from disttest.plugins.gpus.leases.quarantine import QuarantineNotes
from disttest.plugins.gpus.machine import GpuMachine, key_of
from disttest.plugins.gpus.machine_advice import MACHINE_ADVICE
from disttest.plugins.gpus.preflight.messages import Check, Level, PreflightResult, Target
from disttest.plugins.gpus.preflight.prover import Prover
from disttest.plugins.gpus.preflight.steps import WORKER, Bounds, targets_of
from disttest.plugins.gpus.torch_facts import TorchFacts
from disttest.plugins.leftovers.shared_memory import ShmEntry, is_abandoned, unused_entries
from disttest.reports.junit import render_junit
from disttest.reports.text import count
from disttest.results.events import AnyEvent, RunFinished, RunStarted, TestCollected, TestFinished
from disttest.results.fold import RunResult, fold
from disttest.results.journal import run_clock


class Examination(Frozen):
    """Options of an examination."""

    level: Level = Level.QUICK
    library: str = ""
    """Path of the NVML library; by default the dynamic linker finds it."""
    root: Path = Path("/")
    compute: str = "cuda"
    """Device for the GPU work; ``cpu`` proves everything except the GPUs."""
    worker: str = WORKER
    cpus: int = 2
    bounds: Bounds = Bounds()
    lease_dir: Path | None = None
    """Directory in which the runs of this host lease GPUs. Leased GPUs are not tested."""


class Diagnosis(Frozen):
    """Hardware of a machine and the findings about it."""

    machine: GpuMachine
    torch: TorchFacts
    findings: tuple[DeviceFinding, ...]
    proved: tuple[str, ...] = ()
    """Names of the slots that passed the preflight."""
    litter: tuple[ShmEntry, ...] = ()
    """Files of this user that libraries created to share memory, and that no process uses."""
    broken: dict[str, str] = msgspec.field(default_factory=dict)
    """Slot name -> reason why it must not be used."""
    duration_s: float = 0.0

    @property
    def exit_code(self) -> ExitCode:
        """Exit code 7 if anything is broken; warnings do not count."""
        bad = any(finding.grade is Grade.BROKEN for finding in self.findings)
        return ExitCode.INFRASTRUCTURE if bad else ExitCode.PASSED


def examine(examination: Examination, *, clock: Callable[[], float] = time.monotonic) -> Diagnosis:
    """Examine this machine; each question to a driver or device has a time limit."""
    started_s = clock()
    with Prover(worker=examination.worker, bounds=examination.bounds) as prover:
        # The driver is asked while the prover imports torch.
        machine = detect_machine(library=examination.library, root=examination.root)
        # The prover imports torch once, and its forks ask for facts and test the devices. An import for each question
        # took three times as long on two processors. A fork that hangs or crashes still has a name.
        torch = prover.ask_torch()
        leases = _leases(examination.lease_dir, machine)
        # Work on a leased GPU would disturb the tests that run there, and they would disturb the proof.
        held = {state.slot.name for state in leases if state.held}
        targets = tuple(target for target in _targets(examination, machine, torch) if target.name not in held)
        preflight = PreflightResult(checks=())
        if torch.version and targets and not _hopeless(machine):
            prover.begin(targets, level=examination.level)
            preflight = prover.result()
    # After the preflight, whose processes are gone now.
    litter = unused_entries(is_abandoned, examination.root / "dev/shm")
    tried = tuple(_finding(check) for check in preflight.checks)
    return Diagnosis(
        machine=machine,
        torch=torch,
        findings=(
            *judge_machine(machine, torch),
            judge_litter(litter),
            *map(judge_lease, leases),
            *tried,
            *check_by_plugins(),
        ),
        litter=litter,
        proved=tuple(t.name for t in targets if preflight.checks and t.name not in preflight.broken),
        broken=preflight.broken,
        duration_s=clock() - started_s,
    )


def check_by_plugins() -> list[DeviceFinding]:
    """Return the findings of plugins. One that raises is a finding, too: the others about the machine still count."""
    try:
        return [each for _, each in plugin_manager().items("disttest_doctor_checks", DeviceFinding)]
    except PluginError as error:
        return [
            DeviceFinding(
                device="machine",
                check="plugins",
                grade=Grade.BROKEN,
                message=f"{error}; the checks of all plugins are missing here: leave that plugin out (-p no: with its name)",
            )
        ]


def _targets(examination: Examination, machine: GpuMachine, torch: TorchFacts) -> tuple[Target, ...]:
    """Return the GPUs, or the CPU if there is no GPU that this torch can use (which is a finding)."""
    if examination.compute == "cuda" and torch.device_type != "cuda":
        machine = msgspec.structs.replace(machine, gpus=())
    return targets_of(machine, compute=examination.compute, cpus=examination.cpus)


def _leases(directory: Path | None, machine: GpuMachine) -> tuple[SlotState, ...]:
    """Return the state of each usable GPU: free, leased or in quarantine."""
    if directory is None or not directory.is_dir() or not machine.gpus:
        return ()
    states = Leaser(directory, lambda: machine).states(allow_busy=True)
    usable = {gpu.index for gpu in machine.usable_gpus}
    return tuple(state for state in states if state.slot.index in usable)


def judge_lease(state: SlotState) -> DeviceFinding:
    """Describe a GPU as the runs of this host see it."""
    if state.held:
        return DeviceFinding(device=state.label, check="lease", message=f"{state.obstacle}: not tested")
    if state.obstacle:
        return DeviceFinding(
            device=state.label,
            check="lease",
            grade=Grade.WARNING,
            message=state.obstacle,
            advice=MACHINE_ADVICE.of("gpu-quarantined"),
        )
    return DeviceFinding(device=state.label, check="lease", message="free")


def judge_litter(litter: Sequence[ShmEntry]) -> DeviceFinding:
    """Judge the shared memory that killed processes have left."""
    if not litter:
        return DeviceFinding(device="machine", check="shared_memory_litter", message="none")
    size = sum(entry.size for entry in litter)
    names = ", ".join(entry.name for entry in litter[:5])
    return DeviceFinding(
        device="machine",
        check="shared_memory_litter",
        grade=Grade.WARNING,
        message=f"{len(litter)} files of this user ({size >> 10} KiB) that no process uses: {names}",
        advice=MACHINE_ADVICE.of("shm-litter"),
    )


def _hopeless(machine: GpuMachine) -> bool:
    """Whether there are GPUs and none is usable. Proving the CPU instead would hide that."""
    return bool(machine.gpus) and not machine.usable_gpus


def _finding(check: Check) -> DeviceFinding:
    measured = "" if check.value is None else f"{_three_digits(check.value)} {check.unit}"
    if check.passed:
        return DeviceFinding(
            device=check.label, check=check.check, message=measured, duration_s=check.duration_s
        )
    return DeviceFinding(
        device=check.label,
        check=check.check,
        grade=Grade.BROKEN,
        message=check.message,
        advice=MACHINE_ADVICE.find(check.message) or MACHINE_ADVICE.of("preflight-failed"),
        duration_s=check.duration_s,
    )


def _three_digits(value: float) -> str:
    """Format with at least three digits, and without an exponent if the number is large."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


_LIFTED = "its quarantine is lifted"
_NOT_LIFTED = "another user put it into quarantine; run disttest doctor as that user or as root to lift it"


def update_quarantine(diagnosis: Diagnosis, directory: Path) -> tuple[str, ...]:
    """Lift the quarantine of slots that passed and quarantine those that failed. Return a line for each change."""
    notes = QuarantineNotes(directory)
    active = notes.active()
    changed = []
    for slot in diagnosis.machine.gpu_slots():
        # By UUID: indices of GPUs change with a reboot or with CUDA_VISIBLE_DEVICES.
        key = key_of(slot)
        if slot.name in diagnosis.proved and key in active:
            lifted = notes.lift(key)
            changed.append(f"{slot.name} ({key}) passed: {_LIFTED if lifted else _NOT_LIFTED}")
        elif slot.name in diagnosis.broken:
            notes.add(key, diagnosis.broken[slot.name])
            changed.append(f"{slot.name} ({key}) is in quarantine now")
    return tuple(changed)


_STYLES = {Grade.OK: "green", Grade.WARNING: "yellow", Grade.BROKEN: "bold red"}

SCHEMA_VERSION = 1
"""Version of the JSON; raised when a reader of the old version would misread the new one."""


def render_json(diagnosis: Diagnosis) -> str:
    """Render the whole diagnosis."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "disttest": disttest.__version__,
        "exit_code": int(diagnosis.exit_code),
        **msgspec.to_builtins(diagnosis),
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n"


def print_diagnosis(diagnosis: Diagnosis, *, to_stderr: bool = False) -> None:
    """Print a table of all checks, then the failed ones with advice, then the verdict."""
    console = Console(stderr=to_stderr, highlight=False)
    if not console.is_terminal:  # a log has no width
        # rich takes 80 columns where there is no terminal, and folds each finding.
        console = Console(stderr=to_stderr, highlight=False, width=160)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("device", "check", "", "finding"):
        table.add_column(title, overflow="fold")
    for finding in diagnosis.findings:
        grade = Text(str(finding.grade), style=_STYLES[finding.grade])
        table.add_row(Text(finding.device), Text(finding.check), grade, Text(finding.message))
    console.print(table)
    for finding in diagnosis.findings:
        if finding.grade is not Grade.OK:
            console.print(Text(render_finding(finding), style=_STYLES[finding.grade]), soft_wrap=True)
    console.print(Text(render_verdict(diagnosis)), soft_wrap=True)


def render_finding(finding: DeviceFinding) -> str:
    """Render one line: place, finding and advice."""
    advice = f" {finding.advice}" if finding.advice else ""
    return f"{finding.grade}: {finding.device}: {finding.check}: {finding.message}.{advice}"


def render_verdict(diagnosis: Diagnosis) -> str:
    """Render the last line."""
    broken = sum(finding.grade is Grade.BROKEN for finding in diagnosis.findings)
    warnings = sum(finding.grade is Grade.WARNING for finding in diagnosis.findings)
    verdict = "this machine is broken" if broken else "this machine works"
    counts = f"{count(len(diagnosis.findings), 'check')}, {broken} failed, {count(warnings, 'warning')}"
    return f"{verdict}: {counts}, {diagnosis.duration_s:.1f} s"


def render_diagnosis_junit(diagnosis: Diagnosis, directory: Path) -> str:
    """Render JUnit XML with one case for each device and check."""
    return render_junit(as_run(diagnosis), directory)


def as_run(diagnosis: Diagnosis) -> RunResult:
    """Convert the diagnosis into a run with one test for each check; a broken one is an infrastructure error."""
    at_s = run_clock()()
    ended_at_s = at_s + diagnosis.duration_s
    events: list[AnyEvent] = [
        RunStarted(
            at_s=at_s,
            run_id="doctor",
            argv=("disttest", "doctor"),
            root="",
            hardware=diagnosis.machine.hardware(),
            slots=len(diagnosis.machine.gpu_slots()) or diagnosis.machine.cpus,
            disttest=disttest.__version__,
        ),
        *(TestCollected(at_s=at_s, test=_case(finding)) for finding in diagnosis.findings),
        *(TestFinished(at_s=ended_at_s, result=_result(f, at_s)) for f in diagnosis.findings),
        RunFinished(at_s=ended_at_s, exit_code=int(diagnosis.exit_code)),
    ]
    return fold(events)


def _case(finding: DeviceFinding) -> TestCase:
    return TestCase(
        nodeid=_nodeid(finding),
        slug=re.sub(r"[^a-z0-9]+", "-", _nodeid(finding).lower()).strip("-"),
        classname=f"doctor.{finding.device}",
        name=finding.check,
        file="",
        line=1,
        suite="doctor",
    )


def _nodeid(finding: DeviceFinding) -> str:
    return f"doctor::{finding.device}::{finding.check}"


def _result(finding: DeviceFinding, at_s: float) -> TestResult:
    broken = finding.grade is Grade.BROKEN
    return TestResult(
        nodeid=_nodeid(finding),
        outcome=Outcome.ERROR if broken else Outcome.PASSED,
        cause=Cause.INFRASTRUCTURE if broken else None,
        started_at_s=at_s,
        duration_s=finding.duration_s,
        message=render_finding(finding) if broken else "",
        notes=() if broken or not finding.message else (finding.message,),
    )
