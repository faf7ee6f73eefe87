"""The rows of the other commands."""

from __future__ import annotations

from pathlib import Path

from disttest.options.option import rows_of
from disttest.options.run_rows import LAUNCHERS
from disttest.options.values import (
    AUTO,
    BYTES,
    COUNT,
    MODULES,
    RATIO,
    SECONDS,
    SWITCH,
    WHOLE,
    Type,
    one_of,
    path,
    text,
)

IN_CONTAINER = ("run", "plan", "doctor")
"""Commands that import tests, and so need torch: their actions may start the image. The others run on the host."""

_plan, _merge, _doctor, _launch = (rows_of(name) for name in ("plan", "merge", "doctor", "launch"))
_run = rows_of("run")
_launched = IN_CONTAINER

PLAN_OPTIONS = (
    _plan(
        "pool",
        text("NAME:GPUS:RUNNERS[:COST]"),
        "A kind of runner; or NAME:SCHEDULER[:PARTITION[:NODESxGPUS[:COST]]], the nodes of slurm or kubernetes.",
        many=True,
    ),
    _plan("nodes", COUNT, "Spread each world over N nodes of a scheduler's pool.", default=1),
    _plan(
        "labels",
        text("NAME=LABEL,…"),
        "Labels of a pool's runners, for runs-on.",
        many=True,
        otherwise="its name",
    ),
    _plan("shards", COUNT, "Split over N equal runners instead."),
    _plan("by", one_of("world-size"), "One shard for each world size instead."),
    _plan("hardware", text("MODEL"), "GPU model that the runners have, or cpu.", default=""),
    _plan("revision", text("COMMIT"), "State of the repository, kept in the plan.", default=""),
    _plan("output", path("FILE"), "Where the plan goes.", default=Path("plan.json")),
    _plan(
        "matrix",
        path("FILE|-"),
        "Where the matrix of GitHub Actions goes (one line).",
        input_default="matrix.json",
    ),
    _plan("allow-empty", SWITCH, "No tests: a plan with the no-op entry, and exit code 0.", default=False),
)

MERGE_OPTIONS = (
    _merge("plan", path("FILE"), "The plan.", otherwise="the plan.json in a DIR"),
    _merge("shards", COUNT, "Without a plan: how many there must be.", default=0, otherwise="any number"),
    _merge("reruns", SWITCH, "Two results of one shard are a run and its re-run.", default=False),
    _merge("results", path("DIR"), "Where the merged results go.", default=Path("merged")),
)

DOCTOR_OPTIONS = (
    _doctor("level", one_of("quick", "full"), "How much work to do.", default="quick"),
    _doctor("json", text("FILE"), "Write everything as JSON; - is standard output."),
    _doctor("junit", text("FILE"), "Write JUnit XML: one case per device and check."),
    _doctor(
        "lease-dir",
        path("DIR"),
        "Where the runs of this host lease GPUs: shows who holds which, and updates the quarantine notes.",
        has_variable=True,
    ),
    _doctor(
        "clean",
        SWITCH,
        "Remove shared memory of ours that no process uses.",
        default=False,
        inputs=(),
    ),
    _doctor("nvml-library", text("FILE"), "Path of the NVML library.", default="", inputs=(), hidden=True),
    _doctor(
        "compute",
        one_of("cuda", "cpu"),
        "Where the work is done.",
        default="cuda",
        inputs=(),
        hidden=True,
    ),
)

LAUNCH_OPTIONS = (
    _launch(
        "image",
        text("NAME"),
        "Image to start.",
        default="",
        otherwise="the released one of this version",
        inputs=_launched,
    ),
    _launch(
        "target",
        one_of(AUTO, "cpu", "cuda", "full"),
        "Which build of the released image.",
        default=AUTO,
        inputs=_launched,
    ),
    _launch(
        "gpus",
        text("CHOICE"),
        "GPUs of the container: auto, all, none, a count, UUIDs, or device=INDEX.",
        default=AUTO,
        inputs=_launched,
    ),
    _launch(
        "pull",
        one_of("missing", "always", "never"),
        "When to pull the image.",
        default="missing",
        inputs=_launched,
    ),
    _launch(
        "requirements",
        path("FILE"),
        "Install what this file for pip names into the image first, once; its torch stays.",
        inputs=("run", "plan"),
    ),
    _launch(
        "engine",
        text("ADDRESS"),
        "Address of the container engine.",
        default="",
        otherwise="DOCKER_HOST, then the usual places",
        inputs=_launched,
    ),
    _launch(
        "user",
        text("CHOICE"),
        "User of the container: auto (the workspace's owner), image, or UID:GID.",
        default=AUTO,
        inputs=_launched,
    ),
    _launch(
        "workspace",
        path("DIR"),
        "Folder to mount.",
        otherwise="GITHUB_WORKSPACE or the current folder",
        inputs=(),
    ),
    _launch(
        "workdir",
        path("DIR"),
        "Where disttest starts inside.",
        default=Path(),
        otherwise="the current folder",
        inputs=(),
    ),
    _launch("results", path("DIR"), "Results directory, on the host.", inputs=("run",)),
    _launch("cache", path("DIR"), "Folder for caches that outlive the container.", inputs=_launched),
    _launch(
        "lease-dir",
        path("DIR"),
        "Folder in which the runners of this host lease GPUs.",
        inputs=_launched,
    ),
    _launch(
        "mount",
        text("PATH[:ro]"),
        "One more folder of the host.",
        many=True,
        inputs=_launched,
    ),
    _launch(
        "env",
        text("NAME[=VALUE]"),
        "One more variable for the container.",
        many=True,
        inputs=_launched,
    ),
    _launch(
        "network",
        text("NAME"),
        "Network of the container, such as none or host.",
        default="",
        inputs=_launched,
    ),
    _launch("read-only", SWITCH, "Mount the image read-only.", default=False, inputs=_launched),
    _launch(
        "shm-size",
        BYTES,
        "Size of /dev/shm, such as 8g.",
        default=0,
        otherwise="half of the memory",
        inputs=_launched,
    ),
    _launch(
        "time-limit",
        SECONDS,
        "The container ends after that, watched or not.",
        default=0.0,
        otherwise="six hours, or a minute more than the deadline",
        inputs=_launched,
    ),
    _launch(
        "deadline", SECONDS, "Time limit of the run inside.", default=0.0, otherwise="none", inputs=("run",)
    ),
    _launch(
        "dry-run",
        SWITCH,
        "Print what would be started, as JSON, and start nothing.",
        default=False,
        inputs=(),
    ),
)

RESIDENT = _run(
    "resident",
    SWITCH,
    "Fork the run from a process that has imported torch already, and stays for the next one.",
    default=False,
    has_variable=True,
    inputs=(),
)

RESIDENT_IMPORTS = _run(
    "resident-imports",
    MODULES,
    "Installed modules that the process for --resident imports, too, once a run has.",
    default=(),
    has_variable=True,
    inputs=(),
)

KEEP_RESULTS = _run(
    "keep-results",
    WHOLE,
    "How many earlier runs, which are kept aside beside --results, stay; older ones are deleted.",
    otherwise="all",
    has_variable=True,
    inputs=(),
)

COMMAND_SETTINGS = (RESIDENT, RESIDENT_IMPORTS, KEEP_RESULTS)
"""What only the command reads, and not the plugin; a project's file may have it, too."""

OTHER_OPTIONS = (
    *COMMAND_SETTINGS,
    _run(
        "progress",
        one_of(AUTO, "live", "lines", "pytest"),
        "What a run shows while it lasts; pytest: its own output.",
        default=AUTO,
        inputs=(),
        of_every_run=True,
    ),
    rows_of("list")("tests", SWITCH, "List every test, not only the suites.", default=False),
    rows_of("cluster-clean")(
        "launcher",
        one_of(*LAUNCHERS),
        "The scheduler.",
        default="slurm",
        has_variable=True,
    ),
    rows_of("cluster-clean")(
        "partition",
        text("NAME"),
        "For Kubernetes NAMESPACE or CONTEXT/NAMESPACE; Slurm's jobs are found without.",
        default="",
    ),
    rows_of("cluster-clean")(
        "all", SWITCH, "Those of living clients, and of other machines, too.", default=False
    ),
    rows_of("diverge")("test", text("TEXT"), "Compare tests whose id contains this.", otherwise="all"),
    rows_of("diverge")(
        "tolerance",
        RATIO,
        "How much numbers may differ, as a share of their size.",
        otherwise="every bit counts",
    ),
    rows_of("replay")("rank", Type(form="K", parse=WHOLE.parse), "The rank.", default=0, otherwise="0"),
    rows_of("report")("format", text("NAME"), "What to write.", many=True, otherwise="all"),
    rows_of("report")(
        "history",
        path("DIR"),
        "Results directory of an earlier run, for the trend and the past of each test in report.html.",
        many=True,
    ),
)
