"""Processors, memory and limits that the kernel grants to this process (cgroup v1 and v2).

Everything is read from files below ``root``, which is ``/`` except in tests.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from disttest.host.machine import CpuShare, Limits, Machine
from disttest.model import Frozen

_UNLIMITED = 1 << 60
"""Threshold for "unlimited": cgroup v1 writes the largest number of whole pages, which depends on the page size."""


class CgroupMount(Frozen):
    """A mounted cgroup hierarchy, and the group of this process in it."""

    version: int
    controllers: tuple[str, ...]
    top: Path
    """Mount point, below ``root``."""
    place: Path
    """Folder of this process's group; the mount point if that folder is not visible."""

    def files(self, name: str) -> Iterator[str]:
        """Yield the content of a file in this group and in all groups above it. Each group is a limit."""
        folder = self.place
        while True:
            text = read_text(folder / name)
            if text:
                yield text
            # `/` is its own parent.
            if folder in (self.top, folder.parent):
                return
            folder = folder.parent


def detect_host(root: Path = Path("/")) -> Machine:
    """Detect the processors, memory and limits of this process."""
    mounts = detect_cgroups(root)
    return Machine(cpu=detect_cpu(mounts), limits=detect_limits(mounts, root), cgroup=cgroup_version(mounts))


def read_text(path: Path) -> str:
    """Return the content of a small file, stripped; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def detect_cgroups(root: Path = Path("/")) -> tuple[CgroupMount, ...]:
    """Return the cgroup hierarchies that are visible to this process."""
    places = _places(read_text(root / "proc/self/cgroup"))
    mounts = []
    for line in read_text(root / "proc/self/mountinfo").splitlines():
        mount = _parse_mount(line, places, root)
        if mount is not None:
            mounts.append(mount)
    return tuple(mounts)


def _places(text: str) -> dict[str, str]:
    """Return controllers, mapped to the path of this process's group. The controller of v2 is the empty string."""
    places: dict[str, str] = {}
    for line in text.splitlines():
        # Formats of cgroups(7): `4:cpu,cpuacct:/docker/3f2a` in v1, `0::/user.slice` in v2. A path may
        # contain colons.
        _, controllers, path = line.split(":", 2)
        places.update(dict.fromkeys(controllers.split(","), path))
    return places


def _parse_mount(line: str, places: dict[str, str], root: Path) -> CgroupMount | None:
    # Format: 36 35 0:33 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
    before, _, after = line.partition(" - ")
    fields, kinds = before.split(), after.split()
    if len(fields) < 5 or not kinds or kinds[0] not in ("cgroup", "cgroup2"):
        return None
    version = 2 if kinds[0] == "cgroup2" else 1
    options = kinds[2].split(",") if version == 1 and len(kinds) > 2 else []
    controllers = tuple(option for option in options if option in places)
    # A named hierarchy of v1 without controllers, such as systemd's, has no limits.
    if version == 1 and not controllers:
        return None
    top = root / fields[4].lstrip("/")
    path = places.get(controllers[0] if controllers else "", "/")
    return CgroupMount(
        version=version, controllers=controllers, top=top, place=_place(top, PurePosixPath(fields[3]), path)
    )


def _place(top: Path, mounted: PurePosixPath, path: str) -> Path:
    """Return the folder of a group below the mount point, or the mount point if the mount does not show the group."""
    group = PurePosixPath(path)
    # Seen from outside its cgroup namespace, a group has a path such as `/../other` (cgroup_namespaces(7)).
    if ".." in group.parts:
        return top
    # A container without a cgroup namespace shows its own group only: `/docker/3f2a` is both the group and
    # the root of the mount.
    inside = group.relative_to(mounted) if group.is_relative_to(mounted) else group.relative_to("/")
    place = top / inside
    return place if place.is_dir() else top


def cgroup_version(mounts: tuple[CgroupMount, ...]) -> str:
    """Return ``v1``, ``v2``, ``hybrid`` or an empty string."""
    versions = {mount.version for mount in mounts}
    return {frozenset({1}): "v1", frozenset({2}): "v2", frozenset({1, 2}): "hybrid"}.get(
        frozenset(versions), ""
    )


def detect_cpu(mounts: tuple[CgroupMount, ...]) -> CpuShare:
    """Read the processors granted by affinity and quota."""
    quotas = [quota for mount in mounts for quota in _quotas(mount)]
    return CpuShare(
        online=os.cpu_count() or 1,
        affinity=len(os.sched_getaffinity(0)),
        quota=min(quotas, default=None),
    )


def _quotas(mount: CgroupMount) -> Iterator[float]:
    if mount.version == 2:
        # `150000 100000`, or `max 100000` without a limit. v1 has -1 in `cpu.cfs_quota_us`.
        pairs = [text.split() for text in mount.files("cpu.max")]
    elif "cpu" in mount.controllers:
        quotas, periods = mount.files("cpu.cfs_quota_us"), mount.files("cpu.cfs_period_us")
        pairs = [[quota, period] for quota, period in zip(quotas, periods, strict=False)]
    else:
        return
    for pair in pairs:
        numbers = [_number(word) for word in pair]
        if len(numbers) == 2 and numbers[0] is not None and numbers[0] > 0 and numbers[1]:
            yield numbers[0] / numbers[1]


def _number(word: str) -> int | None:
    try:
        return int(word)
    except ValueError:
        return None


def detect_limits(mounts: tuple[CgroupMount, ...], root: Path = Path("/")) -> Limits:
    """Read the limits of memory, shared memory and other resources."""
    total = _memory_total(root)
    shm_size, shm_used = _shm(root / "dev/shm")
    return Limits(
        memory=min([total, *(limit for mount in mounts for limit in _memory_limits(mount))]),
        memory_total=total,
        shm_size=shm_size,
        shm_used=shm_used,
        memlock=_rlimit(resource.RLIMIT_MEMLOCK),
        open_files=_rlimit(resource.RLIMIT_NOFILE),
    )


def _memory_total(root: Path) -> int:
    for line in read_text(root / "proc/meminfo").splitlines():
        # `MemTotal:       16303428 kB`
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _memory_limits(mount: CgroupMount) -> Iterator[int]:
    if mount.version == 1 and "memory" not in mount.controllers:
        return
    for text in mount.files("memory.max" if mount.version == 2 else "memory.limit_in_bytes"):
        limit = _number(text)
        if limit is not None and 0 < limit < _UNLIMITED:
            yield limit


def _shm(folder: Path) -> tuple[int, int]:
    try:
        facts = os.statvfs(folder)
    except OSError:
        return 0, 0
    return facts.f_blocks * facts.f_frsize, (facts.f_blocks - facts.f_bfree) * facts.f_frsize


def _rlimit(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft
