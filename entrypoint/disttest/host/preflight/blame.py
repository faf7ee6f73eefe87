"""Attribution of failed checks to devices that must not be used. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from disttest.host.preflight.messages import PAIR_CHECK, Check


def find_broken(checks: Sequence[Check]) -> dict[str, str]:
    """Return the devices that account for all failures, by slot name, with the reason."""
    # A check of one device accuses that device. In a failing pair either end may be at fault: the device with the
    # most failing pairs is blamed until every pair is explained. A collective that accuses no single rank, on devices
    # that all passed alone and in pairs, condemns all of them: no world can run there.
    failed = [check for check in checks if not check.passed]
    pairs = [check for check in failed if check.check == PAIR_CHECK]
    broken = {check.devices[0]: _reason(check) for check in reversed(failed) if len(check.devices) == 1}
    broken.update(_worst_of_pairs(pairs, broken))
    for check in failed:
        if check.check != PAIR_CHECK and len(check.devices) > 1 and not broken.keys() & set(check.devices):
            broken.update(dict.fromkeys(check.devices, _reason(check)))
    return broken


def _reason(check: Check) -> str:
    return f"{check.check} failed on {check.label}: {check.message}"


def _worst_of_pairs(pairs: Sequence[Check], known: Iterable[str]) -> dict[str, str]:
    blamed: dict[str, str] = {}
    open_pairs = [pair for pair in pairs if not set(pair.devices) & set(known)]
    while open_pairs:
        count = Counter(device for pair in open_pairs for device in pair.devices)
        # Excluding either device of a pair ends the failures, and excluding both wastes one. Ties go to the higher
        # index.
        worst = max(count, key=lambda device: (count[device], device))
        theirs = [pair for pair in open_pairs if worst in pair.devices]
        blamed[worst] = _reason(theirs[0])
        open_pairs = [pair for pair in open_pairs if pair not in theirs]
    return blamed
