"""Interpretation of Slurm's output: its ``-o`` formats, states, reasons and complaints. Pure functions.

The ``-o`` formats are chosen here and have not changed in a decade. ``--json`` differs between releases, and ``sacct``
needs accounting, which small clusters lack.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from disttest.errors import SchedulerError
from disttest.extras.cluster.protocol.launcher import Capacity, JobOutcome, JobState
from disttest.model import Frozen

OLDEST = (20, 11)
"""The oldest release whose ``srun`` has all required options."""

# https://slurm.schedmd.com/squeue.html#OPT_format
# 4711|PENDING|Resources||disttest-…-j1
# 4712|RUNNING|None|n[1-2]|disttest-…-j2
SQUEUE_FORMAT = "%i|%T|%r|%N|%j"
# 2|gpu:a100:8(S:0-1)|64+|idle|1-00:00:00|gpu*
SINFO_FORMAT = "%D|%G|%c|%t|%l|%P"

_STATES = {
    "PENDING": JobState.QUEUED,
    "CONFIGURING": JobState.QUEUED,
    "REQUEUED": JobState.QUEUED,
    "RUNNING": JobState.RUNNING,
    # The nodes are still taken, and the final state is not known yet.
    "COMPLETING": JobState.RUNNING,
    "SUSPENDED": JobState.RUNNING,
    "COMPLETED": JobState.COMPLETED,
    "FAILED": JobState.COMPLETED,  # an exit code, which decides no verdict
    "CANCELLED": JobState.CANCELLED,
    "REVOKED": JobState.CANCELLED,
    "TIMEOUT": JobState.TIME_LIMIT,
    "DEADLINE": JobState.TIME_LIMIT,
    "NODE_FAIL": JobState.NODE_LOST,
    "BOOT_FAIL": JobState.NODE_LOST,
    "PREEMPTED": JobState.PREEMPTED,
    "OUT_OF_MEMORY": JobState.OUT_OF_MEMORY,
}

_LIMITS = "sacctmgr show associations, sacctmgr show qos"
_NEVER = {
    "PartitionNodeLimit": "the partition does not permit so many nodes in one job; request fewer (--nodes)",
    "PartitionTimeLimit": "the time limit of the partition is shorter; lower --job-limit",
    "BadConstraints": "no node can satisfy the request; request fewer GPUs or ranks on each node",
    "AccountNotAllowed": "the partition does not permit this account; choose another --account or --partition",
    "InvalidAccount": "name an existing account with --account (sacctmgr show associations)",
    "InvalidQOS": "the account has no such quality of service; choose another one in --scheduler-args",
    "QOSNotAllowed": "the partition does not permit this quality of service; choose another one",
    "(Assoc|QOS)MaxNodePerJob": "the account may not use so many nodes in one job; request fewer (--nodes)",
    "(Assoc|QOS)MaxGRESPer(Job|Node)": "the account may not use so many GPUs in one job; request fewer (--gpus-per-node)",
    "(Assoc|QOS)MaxWallDurationPerJob": "the account may not run so long a job; lower --job-limit",
    r"(Assoc|QOS)Max\w+Per(Job|Node)": f"the account may not use so much in one job; see {_LIMITS}",
    "QOSMin": f"the quality of service is for larger jobs; see {_LIMITS}",
    "DependencyNeverSatisfied": "it waits for a job that has failed",
}
"""Patterns of reasons for which a job waits forever."""

_HELD = {
    "JobHeldUser": "a user holds it; release it with scontrol release",
    "JobHeldAdmin": "an administrator holds it; ask for its release",
    "launch failed requeued held": "its nodes could not start it; ask an administrator",
    "PartitionDown": "the partition accepts no jobs now; choose another --partition",
    "PartitionInactive": "the partition accepts no jobs now; choose another --partition",
}

# The first pattern counts that any line has. The line of a cancellation also has its reason:
# *** STEP 7.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***
_WORDS: tuple[tuple[str, JobState, str], ...] = (
    (
        r"DUE TO TIME LIMIT",
        JobState.TIME_LIMIT,
        "Raise --job-limit, or give the tests shorter time limits",
    ),
    (
        r"DUE TO PREEMPTION|PREEMPTED",
        JobState.PREEMPTED,
        "Another job had priority on its nodes; run it again",
    ),
    (
        r"NODE FAIL|[Nn]ode failure|Socket timed out|Unable to confirm allocation|Zero Bytes were transmitted|DUE TO NODE",
        JobState.NODE_LOST,
        "A node is broken or out of reach (sinfo -R); run it again without that node",
    ),
    (
        r"oom[-_ ]kill|[Oo]ut [Oo]f [Mm]emory",
        JobState.OUT_OF_MEMORY,
        "Give the job more memory (--scheduler-args='--mem=…')",
    ),
    (
        r"Invalid partition|invalid partition",
        JobState.REJECTED,
        "Name an existing partition with --partition (sinfo -o %P)",
    ),
    (
        r"Invalid account",
        JobState.REJECTED,
        "Name an existing account with --account (sacctmgr show associations)",
    ),
    (
        r"node configuration is not available|More processors requested|Invalid generic resource|Node count spec",
        JobState.REJECTED,
        "There are not so many nodes, or none has so many GPUs or processors; see sinfo -N -o '%N %G %c'",
    ),
    (
        r"^(Assoc|QOS)\w+$|violates accounting/QOS policy",
        JobState.REJECTED,
        f"The job exceeds a limit of the account or its quality of service; see {_LIMITS}",
    ),
    (
        r"unrecognized option|requires an argument|Invalid --",
        JobState.REJECTED,
        "Check --scheduler-args; --image needs Slurm's plugin pyxis, or --container docker",
    ),
    # After the limits of accounts, whose sentence has these words, too: `size and/or time limits`.
    (r"[Tt]ime limit", JobState.REJECTED, "Lower --job-limit"),
    (
        r"Unable to contact slurm controller|configuration source|Unable to connect|fetch_config",
        JobState.UNREACHABLE,
        "Slurm's controller does not answer; check it with scontrol ping",
    ),
    (
        r"[Ii]nvalid user|munge|[Aa]uthentication|Protocol auth",
        JobState.UNREACHABLE,
        "Check munge with: munge -n | unmunge",
    ),
    (
        r"^docker: |^pyxis: .*([Ff]ail|[Ee]rror|couldn't)",
        JobState.REJECTED,
        "A node cannot start the container; check --image, --mount, and the container engine of the node",
    ),
    (r"Force Terminated|CANCELLED|[Cc]ancel", JobState.CANCELLED, ""),
    (
        r"Unable to allocate|Unable to create step",
        JobState.REJECTED,
        "Slurm refuses this job; see the reason",
    ),
)


# \Z: a line that follows such words has another reason.
_FOR_NOW = {
    r"^.*(sleeping and retrying|Resource temporarily unavailable)\.?\Z": (
        "Slurm accepts no more jobs now, as at its MaxJobCount (scontrol show config)"
    ),
    r"^((Assoc|QOS)(Max|Grp)Submit|MaxSubmitJobs)\w+(\n.*accounting/QOS policy.*)?\Z": (
        "the account or its quality of service may submit no more jobs at a time"
    ),
}
"""Patterns of the last words of an srun whose job was refused because there are too many jobs."""


class QueueLine(Frozen):
    """A job as ``squeue`` shows it."""

    job_id: str
    state: JobState
    reason: str
    nodes: str
    name: str
    suspended: bool = False
    """Whether its processes are stopped, by ``scontrol suspend`` or for another job of the partition."""


def parse_queue(text: str) -> tuple[QueueLine, ...]:
    """Parse the output of ``squeue -h -o``; invalid lines are ignored."""
    lines = []
    for line in text.splitlines():
        # The name comes last: jobs of other programs may have a bar in theirs.
        parts = line.strip().split("|", 4)
        if len(parts) == 5 and parts[1] in _STATES:
            number, state, reason, nodes, name = parts
            reason = "" if reason in ("None", "(null)") else reason
            lines.append(
                QueueLine(
                    job_id=number,
                    state=_STATES[state],
                    reason=reason,
                    nodes=nodes,
                    name=name,
                    suspended=state == "SUSPENDED",
                )
            )
    return tuple(lines)


def stuck(line: QueueLine) -> JobOutcome | None:
    """Return the reason why a queued job will never start; None if it may still start."""
    if line.state is not JobState.QUEUED:
        return None
    for table, state in ((_NEVER, JobState.REJECTED), (_HELD, JobState.HELD)):
        if advice := _advice_in(table, line.reason):
            return JobOutcome(state=state, reason=f"Slurm keeps it waiting ({line.reason})", advice=advice)
    return None


def _advice_in(table: Mapping[str, str], reason: str) -> str:
    return next((_sentence(text) for pattern, text in table.items() if re.match(pattern, reason)), "")


def refused_for_now(complaints: Iterable[str]) -> str:
    """Return why Slurm refuses a job until others have ended; empty for any other reason."""
    said = "\n".join(filter(None, map(clean, complaints)))
    for pattern, why in _FOR_NOW.items():
        if match := re.search(pattern, said, re.MULTILINE):
            return f"{match[0].splitlines()[0].rstrip('.')}: {why}"
    return ""


def end_of(
    seen: QueueLine | None, complaints: Iterable[str], exit_code: int | None, *, started: bool
) -> JobOutcome:
    """Return how a job ended: from the queue if it knows, otherwise from the complaints of ``srun``.

    Args:
        seen: the job in the queue after its end; None if Slurm did not answer.
        complaints: lines of srun's standard error.
        exit_code: exit code of srun.
        started: whether an agent was heard.
    """
    words = [clean(line) for line in complaints if clean(line)]
    state, advice, reason = _by_words(words)
    if seen is not None and seen.state.is_over and seen.state is not JobState.COMPLETED:
        # squeue also shows CANCELLED for a job that was ended for another reason, which srun has printed.
        kept = state if seen.state is JobState.CANCELLED and state is not None else seen.state
        detail = reason or seen.reason
        return JobOutcome(state=kept, reason=detail, advice=advice or _advice_for(kept), exit_code=exit_code)
    if state is not None and (exit_code or not started):
        return JobOutcome(state=state, reason=reason, advice=advice, exit_code=exit_code)
    # The controller did not answer, so there is only srun's own exit code, which decides no verdict.
    if seen is None and exit_code:
        return JobOutcome(
            state=JobState.UNREACHABLE if not started else JobState.COMPLETED,
            reason=words[-1] if words else f"srun ended with {exit_code}",
            exit_code=exit_code,
        )
    return JobOutcome(state=JobState.COMPLETED, reason=words[-1] if words else "", exit_code=exit_code)


def task_ended(line: str) -> tuple[tuple[int, ...], str]:
    """Return the tasks whose end srun reports in a line, and how they ended: ``srun: error: n2: task 1: Killed``."""
    match = re.fullmatch(r"srun: error: \S+: tasks? ([\d,-]+): (.+)", line.strip())
    if match is None:
        return (), ""
    tasks: list[int] = []
    # srun: error: n[1-3]: tasks 0,2-3: Killed
    for part in match[1].split(","):
        first, _, last = part.partition("-")
        tasks += range(int(first), int(last or first) + 1)
    return tuple(tasks), match[2]


def was_cancelled(complaints: Iterable[str]) -> bool:
    """Whether the job was cancelled, and not for its time limit or for another job."""
    # Slurm adds `DUE TO …` to the time for every other reason.
    return any(re.search(r"\*\*\* (STEP|JOB) .*CANCELLED AT [\dT:-]+ \*\*\*", line) for line in complaints)


def _by_words(words: list[str]) -> tuple[JobState | None, str, str]:
    for word in words:  # reasons for which Slurm does not even queue the job
        if advice := _advice_in(_NEVER, word):
            return JobState.REJECTED, advice, word
    for pattern, state, advice in _WORDS:
        said = next((word for word in words if re.search(pattern, word)), None)
        if said is not None:
            return state, advice, said
    return None, "", ""


def _advice_for(state: JobState) -> str:
    return next((advice for _, known, advice in _WORDS if known is state), "")


def clean(line: str) -> str:
    """Remove the program's name from a complaint; empty if it only repeats that a step ended."""
    text = re.sub(
        r"^(srun|slurmstepd|scancel|sinfo|scontrol|squeue): (error: |fatal: |Warning: )?", "", line.strip()
    )
    noise = r"^(Job step aborted|job \d+ (queued|has been allocated)|launch/slurm: _step|Terminating StepId)"
    return "" if re.match(noise, text) else text


def parse_version(text: str) -> tuple[int, int]:
    """Parse ``slurm-wlm 22.05.8`` as ``(22, 5)``.

    Raises:
        SchedulerError: the text has no version, or the version is too old.
    """
    match = re.search(r"(\d+)\.(\d+)", text)
    if match is None:
        raise SchedulerError(f"srun --version says {text.strip()!r}, which is not a version of Slurm")
    version = int(match[1]), int(match[2])
    if version < OLDEST:
        raise SchedulerError(
            f"this is {text.strip()}; disttest needs Slurm {OLDEST[0]}.{OLDEST[1]:02} or newer on the machine that submits"
        )
    return version


def parse_time(text: str) -> float:
    """Parse Slurm's ``[days-][[hours:]minutes:]seconds`` as seconds; infinity for no limit."""
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", text):
        return math.inf
    days, _, clock = text.rpartition("-")
    seconds = 0
    for part in clock.split(":"):
        seconds = 60 * seconds + int(part)
    return float(int(days or 0) * 86_400 + seconds)


def parse_capacity(text: str, scheduler: str) -> Capacity:
    """Parse ``sinfo -h -o``: the working nodes with the most GPUs, of the default partition if there is one.

    Raises:
        SchedulerError: there is no such node.
    """
    lines = text.splitlines()
    # Without --partition a job goes to the default one, which sinfo marks. With it sinfo lists only that one.
    lines = [line for line in lines if line.rstrip().endswith("*")] or lines
    counts: dict[tuple[int, int], int] = {}
    longest_s: list[float] = []
    for line in lines:
        parts = line.strip().split("|")
        if len(parts) != 6 or not parts[0].isdigit() or not _works(parts[3]):
            continue
        longest_s.append(parse_time(parts[4]))
        # 64+ is the least number of a line whose nodes differ.
        kind = _gpus(parts[1]), int(re.sub(r"\D.*", "", parts[2]) or 1)
        counts[kind] = counts.get(kind, 0) + int(parts[0])
    if not counts:
        raise SchedulerError("Slurm has no working node in the partition; see sinfo -R")
    gpus = max(gpus for gpus, _ in counts)
    same = {kind: count for kind, count in counts.items() if kind[0] == gpus}
    limit_s = min(longest_s)
    return Capacity(
        nodes=sum(same.values()),
        gpus_per_node=gpus,
        cpus_per_node=min(cpus for _, cpus in same),
        scheduler=scheduler,
        longest_job_s=0.0 if math.isinf(limit_s) else limit_s,
    )


def _works(state: str) -> bool:
    bad = ("down", "drain", "drng", "fail", "maint", "unk", "boot", "power", "pow_dn", "inval")
    # `*` is a node that does not answer, `$` one in a reservation for maintenance. `idle~` counts: Slurm
    # powers it up when a job needs it.
    return not state.startswith(bad) and not state.endswith(("*", "$"))


def _gpus(gres: str) -> int:
    """Return the GPUs in a node's generic resources: ``gpu:2``, ``gpu:a100:8(S:0-1)``, ``craynetwork:4,gpu:4``."""
    return sum(int(match[1]) for match in re.finditer(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)", gres))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
