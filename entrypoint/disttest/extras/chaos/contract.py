"""The contract of a test: its ``chaos`` mark, or the default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from disttest.errors import UsageError
from disttest.extras.chaos.case import Contract, Survival

_LOSSES = ("kill", "stop", "raise_")
_KNOWN = (*_LOSSES, "delay", "recover", "within_s")


def contract_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Contract:
    """Return the contract of a mark: ``chaos(kill="recovers", within_s=2)``, or ``chaos(recover=True)`` for all faults.

    Raises:
        UsageError: an argument of the mark is unknown or invalid.
    """
    if args or (unknown := sorted(set(kwargs) - set(_KNOWN))):
        raise UsageError(f"chaos mark takes {', '.join(_KNOWN)}, not {args[0] if args else unknown[0]!r}")
    given = dict.fromkeys(_LOSSES, Survival.RECOVERS) if kwargs.get("recover") else {}
    given |= {key: value for key, value in kwargs.items() if key != "recover"}
    try:
        contract = msgspec.convert(given, Contract)
    except msgspec.ValidationError:
        raise UsageError(
            f"chaos mark: kill, stop, raise_ and delay must be one of {', '.join(Survival)}, and within_s a number"
        ) from None
    if contract.within_s <= 0:
        raise UsageError(
            f"chaos mark: within_s is {contract.within_s:g}; give a number of seconds greater than 0"
        )
    return contract
