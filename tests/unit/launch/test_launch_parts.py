"""Endpoints, engine facts, environment, ownership, image names and preparation."""

from __future__ import annotations

import json
import os
from dataclasses import replace as replace_host
from pathlib import Path

import pytest
from docker.errors import APIError
from msgspec.structs import replace

from disttest.errors import EngineError, UsageError
from disttest.extras.container.command import read_options, take_secrets
from disttest.extras.container.container_environment import choose_environment
from disttest.extras.container.container_spec import LaunchSpec
from disttest.extras.container.engine import (
    EngineFacts,
    connection_arguments,
    endpoints,
    is_passing,
    read_state,
    split_tag,
)
from disttest.extras.container.gpus import HostGpu
from disttest.extras.container.launch_host import this_host, usable
from disttest.extras.container.launching import end_of, ran_out_of_memory
from disttest.extras.container.options import LaunchOptions
from disttest.extras.container.ownership import HandBack, Owner, choose_user, hand_back_of, needs_hand_back
from disttest.extras.container.prepare import choose_image, prepare
from disttest.extras.container.supervise import ContainerOutcome
from disttest.host.proc import ProcessIdentity
from disttest.plugins.gpus.machine import Gpu, MigSlice

DOCKER = EngineFacts(name="docker", version="27")
ROOTLESS = EngineFacts(name="docker", version="27", rootless=True)
OWNER = Owner(uid=1234, gid=5)
FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_chosen_engine_is_the_only_one_tried(home: Path) -> None:
    environ = {"DOCKER_HOST": "tcp://other:1"}
    (first,) = endpoints(chosen="unix:///x", environ=environ, uid=7, home=str(home))
    assert (first.host, first.chosen) == ("unix:///x", True)
    (second,) = endpoints(chosen="", environ=environ, uid=7, home=str(home))
    assert (second.origin, second.host, second.chosen) == ("DOCKER_HOST", "tcp://other:1", True)


def test_usual_places_are_tried_in_order(home: Path) -> None:
    tried = endpoints(chosen="", environ={}, uid=7, home="/home/me")
    assert [one.host for one in tried] == [
        "unix:///var/run/docker.sock",
        "unix:///run/user/7/docker.sock",
        "unix:///home/me/.docker/run/docker.sock",
        "unix:///run/user/7/podman/podman.sock",
        "unix:///run/podman/podman.sock",
    ]
    assert not any(one.chosen for one in tried)


def test_a_docker_context_counts_as_chosen(home: Path) -> None:
    from docker.context import ContextAPI

    ContextAPI.create_context("far", host="unix:///far.sock")
    (only,) = endpoints(chosen="", environ={"DOCKER_CONTEXT": "far"}, uid=7, home=str(home))
    assert (only.origin, only.chosen) == ("docker context", True)
    assert only.host.endswith("unix:///far.sock")
    assert connection_arguments(only, {"DOCKER_CONTEXT": "far"}) == {"base_url": only.host}


def test_the_certificates_of_a_docker_context_go_with_it(home: Path) -> None:
    from docker.context import ContextAPI
    from docker.tls import TLSConfig

    ca, cert, key = (str(home / f"{name}.pem") for name in ("ca", "cert", "key"))
    for path in (ca, cert, key):
        Path(path).write_text("")
    tls = TLSConfig(ca_cert=ca, client_cert=(cert, key), verify=True)
    ContextAPI.create_context("far", host="tcp://far:2376", tls_cfg=tls)
    environ = {"DOCKER_CONTEXT": "far"}
    (only,) = endpoints(chosen="", environ=environ, uid=7, home=str(home))

    given = connection_arguments(only, environ)

    assert "far:2376" in given["base_url"]
    assert [Path(path).name for path in given["tls"].cert] == ["cert.pem", "key.pem"]


def test_the_context_in_use_counts_without_a_variable(home: Path) -> None:
    from docker.context import ContextAPI

    ContextAPI.create_context("near", host="unix:///near.sock")
    (home / "config.json").write_text(json.dumps({"currentContext": "near"}))

    (only,) = endpoints(chosen="", environ={}, uid=7, home=str(home))

    assert only.host.endswith("unix:///near.sock")


@pytest.mark.parametrize("chosen_by", ["variable", "configuration"])
def test_a_docker_context_that_is_not_there_leads_to_no_other_engine(home: Path, chosen_by: str) -> None:
    environ = {"DOCKER_CONTEXT": "gone"} if chosen_by == "variable" else {}
    if chosen_by == "configuration":
        (home / "config.json").write_text(json.dumps({"currentContext": "gone"}))

    with pytest.raises(
        EngineError, match=r"no Docker context 'gone'.*docker context ls.*\[context-missing\]"
    ):
        endpoints(chosen="", environ=environ, uid=7, home=str(home))


@pytest.mark.parametrize("content", ["not json", "{}", '{"Name": "torn", "Endpoints": {}}'])
def test_a_docker_context_that_cannot_be_read_is_an_error_of_ours(home: Path, content: str) -> None:
    from docker.context import ContextAPI

    ContextAPI.create_context("torn", host="unix:///torn.sock")
    (meta,) = home.rglob("meta.json")
    meta.write_text(content)

    with pytest.raises(EngineError, match=r"Docker context 'torn' cannot be read.*\[context-broken\]"):
        endpoints(chosen="", environ={"DOCKER_CONTEXT": "torn"}, uid=7, home=str(home))


def test_a_chosen_engine_needs_no_context(home: Path) -> None:
    environ = {"DOCKER_CONTEXT": "gone"}

    assert endpoints(chosen="unix:///x", environ=environ, uid=7, home=str(home))


def test_facts_of_docker_with_cdi() -> None:
    info = {
        "MemTotal": 5,
        "Runtimes": {"runc": {}, "nvidia": {}},
        "SecurityOptions": ["name=seccomp", "name=rootless"],
        "DiscoveredDevices": [
            {"Source": "cdi", "ID": "nvidia.com/gpu=0"},
            {"Source": "cdi", "ID": "x.com/y=0"},
        ],
    }
    facts = read_state(info, {"Version": "28"}, base_url="http+docker://localhost")
    assert (facts.name, facts.rootless, facts.memory_bytes, facts.local) == ("docker", True, 5, True)
    assert (facts.gpus.cdi, facts.gpus.runtime) == (("nvidia.com/gpu=0",), True)


def test_facts_of_podman_elsewhere() -> None:
    version = {"Components": [{"Name": "Podman Engine"}], "Version": "5"}
    facts = read_state({"Runtimes": None, "SecurityOptions": None}, version, base_url="http://far:2375")
    assert (facts.name, facts.gpus.podman, facts.local) == ("podman", True, False)


def test_podman_4_3_says_in_a_place_of_its_own_that_it_is_rootless() -> None:
    """Recorded from Debian 12's: its SecurityOptions do not say so."""
    answers = json.loads((FIXTURES / "engines" / "podman-4.3-rootless.json").read_text())
    facts = read_state(answers["info"], answers["version"], base_url="http+docker://localhost")
    assert (facts.name, facts.version, facts.rootless) == ("podman", "4.3.1", True)
    # The container's root is the user: any other number would be one of the user's sub-uids.
    assert choose_user("auto", owner=OWNER, facts=facts) == "0:0"
    assert not needs_hand_back("0:0", owner=OWNER, facts=facts)


def test_podman_of_root_is_not_rootless() -> None:
    answers = json.loads((FIXTURES / "engines" / "podman-4.3-rootless.json").read_text())
    info = answers["info"] | {"Rootless": False}
    assert not read_state(info, answers["version"], base_url="http+docker://localhost").rootless


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("name", ("name", "latest")),
        ("name:1", ("name", "1")),
        ("host:5000/name", ("host:5000/name", "latest")),
        ("host:5000/name:1", ("host:5000/name", "1")),
        ("name@sha256:abc", ("name", "sha256:abc")),
        ("name:1@sha256:abc", ("name:1", "sha256:abc")),
    ],
)
def test_image_names(image: str, parts: tuple[str, str]) -> None:
    assert split_tag(image) == parts


def test_only_what_may_pass_is_tried_again() -> None:
    assert is_passing(APIError("toomanyrequests: slow down"))
    assert not is_passing(APIError("manifest unknown"))
    assert not is_passing(APIError("pull access denied for x"))
    assert not is_passing(KeyError("a bug of ours"))


def test_secrets_never_pass_by_themselves() -> None:
    environ = {
        "GITHUB_TOKEN": "t", "AWS_SECRET_ACCESS_KEY": "s", "TORCH_HUB_TOKEN": "u",
        "DISTTEST_INPUT_SUITE": "x",
        "PATH": "/bin", "HOME": "/root", "LD_PRELOAD": "x", "NCCL_DEBUG": "INFO", "GITHUB_SHA": "abc",
        "GITHUB_HEAD_REF": "topic",
        "TORCH_AUTH": "a", "DISTTEST_API": "b", "DISTTEST_ENV": "S=c", "NCCL_API_KEY": "d", "GLOO_AUTH": "e",
        "DISTTEST_SEED": "3", "TORCH_LOGS": "dynamo",
    }  # fmt: skip
    passing = {"NCCL_DEBUG", "GITHUB_SHA", "GITHUB_HEAD_REF", "DISTTEST_SEED", "TORCH_LOGS"}
    assert choose_environment(environ, ()) == {name: environ[name] for name in passing}
    assert choose_environment(environ, ("GITHUB_TOKEN", "A=b=c", "ABSENT"))["GITHUB_TOKEN"] == "t"


@pytest.mark.parametrize("entry", ["", "=x", "1A=x", "A B=x", "A-B"])
def test_variables_that_are_none(entry: str) -> None:
    with pytest.raises(UsageError, match="is not NAME or NAME=VALUE"):
        choose_environment({}, (entry,))


def test_the_user_is_the_workspaces_owner() -> None:
    assert choose_user("auto", owner=OWNER, facts=DOCKER) == "1234:5"
    assert choose_user("auto", owner=OWNER, facts=ROOTLESS) == "0:0"
    assert choose_user("image", owner=OWNER, facts=DOCKER) == ""
    assert choose_user("7:8", owner=OWNER, facts=DOCKER) == "7:8"
    with pytest.raises(UsageError, match="is not auto, image"):
        choose_user("root; id", owner=OWNER, facts=DOCKER)


def test_files_are_handed_back_where_the_user_is_another() -> None:
    assert not needs_hand_back("1234:5", owner=OWNER, facts=DOCKER)
    assert needs_hand_back("0:0", owner=OWNER, facts=DOCKER)
    assert needs_hand_back("", owner=OWNER, facts=DOCKER)
    assert not needs_hand_back("0:0", owner=OWNER, facts=ROOTLESS)


def test_a_hand_back_survives_as_labels_and_strange_labels_ask_for_nothing() -> None:
    task = HandBack(workspace="/w", owner="1:2", since=3.5)
    assert hand_back_of(task.labels()) == task
    assert hand_back_of({}) is None
    assert hand_back_of(task.labels() | {"io.disttest.owner": "root"}) is None
    assert hand_back_of(task.labels() | {"io.disttest.workspace": "-delete"}) is None


def test_broken_gpus_are_not_handed_out_and_slices_are() -> None:
    assert usable(Gpu(index=0, uuid="GPU-0")) == (HostGpu(index=0, uuid="GPU-0"),)
    assert usable(Gpu(index=0, uuid="GPU-0", fault="lost")) == ()
    sliced = Gpu(
        index=1, uuid="GPU-1", mig_enabled=True, slices=(MigSlice(uuid="MIG-a"), MigSlice(uuid="MIG-b"))
    )
    assert [gpu.uuid for gpu in usable(sliced)] == ["MIG-a", "MIG-b"]


def test_the_image_follows_the_gpus_unless_it_is_named() -> None:
    options = LaunchOptions(arguments=())
    assert choose_image(options, version="1.2.3", with_gpus=True) == "ghcr.io/org/dist-tests:1.2.3-cuda"
    assert choose_image(options, version="1.2.3", with_gpus=False) == "ghcr.io/org/dist-tests:1.2.3-cpu"
    full = LaunchOptions(arguments=(), target="full")
    assert choose_image(full, version="1", with_gpus=False) == "ghcr.io/org/dist-tests:1-full"
    assert choose_image(LaunchOptions(arguments=(), image="my:1"), version="1", with_gpus=True) == "my:1"


@pytest.mark.parametrize(
    ("lease", "told", "devices"),
    [(False, None, ("GPU-a",)), (True, "1", ("GPU-a", "GPU-b"))],
)
def test_a_run_with_leases_takes_its_number_of_gpus_by_itself(
    tmp_path: Path, lease: bool, told: str | None, devices: tuple[str, ...]
) -> None:
    options = LaunchOptions(
        arguments=("ddp",), workspace=tmp_path, working_dir=tmp_path, gpus="1",
        lease_dir=tmp_path if lease else None,
    )  # fmt: skip
    spec = prepared(options, gpus=(HostGpu(index=0, uuid="GPU-a"), HostGpu(index=1, uuid="GPU-b"))).spec
    assert spec.gpus.devices == devices
    assert spec.environment.get("DISTTEST_GPUS") == told


def prepared(
    options: LaunchOptions,
    environ: dict[str, str] | None = None,
    gpus: tuple[HostGpu, ...] = (),
    facts: EngineFacts = DOCKER,
):
    return prepare(
        options,
        environ=environ or {},
        facts=facts,
        host_gpus=gpus,
        client=ProcessIdentity(boot="b", namespace="n", pid=1, started=2),
        now_s=100.0,
        version="1",
    )


def test_mounts_are_the_workspace_and_what_lies_outside_it(tmp_path: Path) -> None:
    work, temp = tmp_path / "work", tmp_path / "temp"
    for folder in (work / "sub", temp):
        folder.mkdir(parents=True)
    (temp / "output").touch()
    options = LaunchOptions(
        arguments=("ddp",), workspace=work, working_dir=work / "sub", results=work / "results",
        cache=temp / "cache", mounts=(f"{temp}:ro",), deadline_s=100,
    )  # fmt: skip
    spec = prepared(
        options, {"GITHUB_OUTPUT": str(temp / "output"), "GITHUB_STEP_SUMMARY": str(temp / "none")}
    ).spec
    assert [(bind.path, bind.read_only) for bind in spec.binds] == [
        (str(temp), True),
        (str(work), False),
        (str(temp / "cache"), False),
        (str(temp / "output"), False),
    ]
    assert spec.environment["DISTTEST_RESULTS"] == str(work / "results")
    assert spec.environment["DISTTEST_DEADLINE"] == "100"
    assert "GITHUB_STEP_SUMMARY" not in spec.environment
    assert spec.time_limit_s == 160
    assert spec.user == f"{os.getuid()}:{os.getgid()}"


def test_a_workspace_that_is_a_link_has_its_real_path_inside(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "work").symlink_to("disk")
    work = tmp_path / "work"
    options = LaunchOptions(arguments=(), workspace=work, working_dir=work)

    spec = prepared(options, {"GITHUB_WORKSPACE": str(work)}).spec

    assert [spec.working_dir, spec.binds[0].path] == [spec.environment["GITHUB_WORKSPACE"]] * 2


@pytest.mark.parametrize("order", [1, -1])
def test_a_folder_that_the_user_protects_stays_read_only(tmp_path: Path, order: int) -> None:
    work, data = tmp_path / "work", tmp_path / "data"
    for folder in (work, data / "golden"):
        folder.mkdir(parents=True)
    mounts = (f"{data}", f"{data}/golden:ro", f"{work}:ro")[::order]
    options = LaunchOptions(
        arguments=(), workspace=work, working_dir=work, mounts=mounts, results=work / "out"
    )

    binds = {bind.path: bind.read_only for bind in prepared(options).spec.binds}

    assert binds == {
        str(data): False,
        f"{data}/golden": True,
        str(work): True,
        f"{work}/out": False,
    }


@pytest.mark.parametrize(
    ("words", "environ", "own", "chosen"),
    [
        (("tests",), {"DISTTEST_RESULTS": "out"}, None, "out"),
        (("tests", "--results", "out"), {"DISTTEST_RESULTS": "other"}, None, "out"),
        (("tests", "--results=out"), {}, "own", "out"),
        (("tests", "--results=other", "--results", "out"), {}, None, "out"),
        (("tests", "--", "--results", "of pytest"), {}, None, None),
        (("tests",), {"DISTTEST_RESULTS": "other"}, "own", "own"),
    ],
)
def test_results_are_on_the_host_however_they_are_named(
    tmp_path: Path, words: tuple[str, ...], environ: dict[str, str], own: str | None, chosen: str | None
) -> None:
    """They were written into the container, and removed with it."""
    host = replace_host(this_host(), environ=environ)
    options = read_options(
        words, host, workspace=None, workdir=tmp_path, env="", mount=(), memory=0, shm_size=0, time_limit=0.0,
        deadline=0.0, results=own and tmp_path / own, lease_dir=None,
    )  # fmt: skip

    assert (tmp_path / chosen if chosen else None) == options.results
    of_pytest = words[words.index("--") :] if "--" in words else ()
    assert ("tests", *of_pytest) == options.arguments


def test_an_option_without_a_variable_stays_inside(tmp_path: Path) -> None:
    words = ("merge", "artifacts", "--results", "merged")
    options = read_options(
        words, this_host(), workspace=None, workdir=tmp_path, env="", mount=(), memory=0, shm_size=0,
        time_limit=0.0, deadline=0.0, results=None, lease_dir=None,
    )  # fmt: skip

    assert (tmp_path / "merged", words) == (options.results, options.arguments)


def test_a_folder_with_two_modes_is_refused(tmp_path: Path) -> None:
    mounts = (f"{tmp_path}:ro", f"{tmp_path}")
    with pytest.raises(UsageError, match="read-only and as writable"):
        prepared(LaunchOptions(arguments=(), workspace=tmp_path, working_dir=tmp_path, mounts=mounts))


def test_limits_of_the_container(tmp_path: Path) -> None:
    asked = LaunchOptions(arguments=(), workspace=tmp_path, working_dir=tmp_path, memory_bytes=4 << 30)
    spec = prepared(asked).spec
    assert (spec.memory_bytes, spec.pids, spec.shm_bytes) == (4 << 30, 16_384, 2 << 30)
    assert prepared(replace(asked, pids_limit=0)).spec.pids == 0
    assert prepared(replace(asked, pids_limit=99)).spec.pids == 99


def test_limits_that_the_engine_cannot_keep(tmp_path: Path) -> None:
    bare = EngineFacts(name="docker", version="27", limits_memory=False, limits_pids=False)
    asked = LaunchOptions(arguments=(), workspace=tmp_path, working_dir=tmp_path)
    assert prepared(asked, facts=bare).spec.pids == 0
    for limit in ({"memory_bytes": 4 << 30}, {"pids_limit": 99}):
        with pytest.raises(EngineError, match="this engine cannot limit"):
            prepared(replace(asked, **limit), facts=bare)


@pytest.mark.parametrize("folder", ["/", "/usr", "/etc", "/proc", "/nowhere"])
def test_folders_that_can_not_be_mounted(folder: str) -> None:
    with pytest.raises(UsageError, match="--workspace"):
        prepared(LaunchOptions(arguments=(), workspace=Path(folder)))


def test_a_killed_run_ends_with_our_signal_and_others_with_their_own_code() -> None:
    spec = LaunchSpec(image="i", arguments=(), working_dir="/w", time_limit_s=60)
    ends = {
        130: ContainerOutcome(code=137, signum=2, killed=True),
        2: ContainerOutcome(code=2, signum=2),
        1: ContainerOutcome(code=1),
        137: ContainerOutcome(code=137, lasted_s=59),
        3: ContainerOutcome(code=137, out_of_memory=True),
    }
    assert {code: end_of(outcome, spec).code for code, outcome in ends.items()} == {
        code: code for code in ends
    }


def test_a_time_limit_is_told_from_the_deadline_of_the_run() -> None:
    spec = LaunchSpec(image="i", arguments=(), working_dir="/w", time_limit_s=60)
    assert end_of(ContainerOutcome(code=124, lasted_s=59), spec).reason == ""
    for code in (124, 137):
        end = end_of(ContainerOutcome(code=code, lasted_s=60.1), spec)
        assert (end.code, "time limit of 60 s" in end.reason) == (124, True)


class KilledContainer:
    """A container whose engine reports the want of memory at a later question."""

    def __init__(self, reported_at: int) -> None:
        self.attrs: dict[str, dict[str, bool]] = {"State": {"OOMKilled": False}}
        self._reported_at = reported_at
        self.asked = 0

    def reload(self) -> None:
        self.asked += 1
        self.attrs["State"]["OOMKilled"] = self.asked >= self._reported_at


@pytest.mark.parametrize(("reported_at", "expected"), [(1, True), (4, True), (10_000, False)])
def test_want_of_memory_that_is_reported_late(
    monkeypatch: pytest.MonkeyPatch, reported_at: int, expected: bool
) -> None:
    now_s = [0.0]
    monkeypatch.setattr("disttest.extras.container.launching.monotonic", lambda: now_s[0])
    monkeypatch.setattr(
        "disttest.extras.container.launching.sleep", lambda seconds: now_s.__setitem__(0, now_s[0] + seconds)
    )
    assert expected is ran_out_of_memory(KilledContainer(reported_at))  # type: ignore[arg-type]


def test_secrets_are_taken_from_a_command_line():
    words = ("ddp", "--mask", "a b", "--retries", "1", "--mask=c=d", "--masked", "--mask")

    left, variables = take_secrets(words, {})

    assert ("ddp", "--retries", "1", "--masked") == left
    assert {"DISTTEST_MASK": "a b\nc=d"} == variables
    assert (("ddp",), {}) == take_secrets(["ddp"], {})
