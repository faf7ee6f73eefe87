"""Each known message of an engine gets its own advice."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttest.extras.container.engine import ENGINE_ADVICE, explain

MESSAGES = {
    "nvidia-container-cli: load library failed: libnvidia-ml.so.1": "nvidia-smi-missing",
    "no such image: Bad/Name:1: invalid reference format: repository name must be lowercase": "image-name",
    "network nosuch not found": "network-missing",
    "Minimum memory limit allowed is 6MB": "memory-limit-small",
    "manifest for ghcr.io/org/dist-tests:9 not found: manifest unknown": "image-missing",
    "pull access denied for x, repository does not exist or may require 'docker login'": "image-denied",
    "Get https://registry-1.docker.io/v2/: dial tcp: lookup registry-1.docker.io: no such host": (
        "registry-unreachable"
    ),
    "toomanyrequests: You have reached your pull rate limit": "registry-unreachable",
    "PermissionError(13, 'Permission denied')": "engine-denied",
    'exec: "disttest": executable file not found in $PATH': "image-entrypoint",
    "write /var/lib/docker/tmp/x: no space left on device": "disk-full",
    "invalid mount config for type bind: bind source path does not exist: /work": "mount-refused",
    "error setting rlimit type 8: operation not permitted": "ulimit-refused",
    "crun: setrlimit `RLIMIT_MEMLOCK`: Operation not permitted: OCI permission denied": "ulimit-refused",
    "crun: setrlimit `RLIMIT_STACK`: Operation not permitted: OCI permission denied": "ulimit-refused",
    "container create: container-init binary not found on the host: stat /usr/libexec/podman/catatonit": (
        "engine-init-missing"
    ),
    "('Connection aborted.', FileNotFoundError(2, 'No such file or directory'))": "engine-gone",
    "Cannot connect to the Docker daemon at unix:///var/run/docker.sock": "engine-gone",
}


@pytest.mark.parametrize(("message", "slug"), MESSAGES.items())
def test_known_messages(message: str, slug: str) -> None:
    known = ENGINE_ADVICE.find(message)
    assert known is not None
    assert known.slug == slug


def test_every_advice_is_reached_by_a_message() -> None:
    assert set(ENGINE_ADVICE.slugs) == set(MESSAGES.values())


@pytest.mark.parametrize(
    "message",
    [
        'could not select device driver "" with capabilities: [[gpu]]',
        'could not select device driver "cdi" with capabilities: []',
        "unknown or invalid runtime name: nvidia",
        "failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=all",
    ],
)
def test_a_missing_toolkit(message: str) -> None:
    assert explain(message).endswith("[gpu-toolkit-missing]")


def test_what_a_broken_machine_says_has_its_advice_too() -> None:
    assert "[driver-library-mismatch]" in explain(
        "Failed to initialize NVML: Driver/library version mismatch"
    )


def test_an_unknown_message_is_passed_on_as_one_line() -> None:
    assert explain("something\n  new") == "something new"


def test_advice_is_one_line_below_the_message() -> None:
    said, advice = explain("no space left on device").splitlines()
    assert said == "no space left on device"
    assert advice.endswith("[disk-full]")


def test_each_advice_has_its_entry_in_the_docs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "errors.md").read_text()
    assert [slug for slug in ENGINE_ADVICE.slugs if f"\n### {slug}\n" not in page] == []
