"""Signatures of calls, by which recorder and player compare them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import torch

from disttest.extras.replay.format import RecordedSignature
from disttest.observe import Call, StoreCall, Wait, as_text, spec_of
from disttest.observe.memory import digest_of
from disttest.observe.operations import IN_PLACE

MAKE, DESTROY = "make a group", "destroy a group"
_FIRST_IS_KEY = frozenset(
    {"add", "append", "compare_set", "delete_key", "get", "queue_len", "queue_pop", "queue_push", "set"}
)


def written_by(call: Call) -> tuple[torch.Tensor, ...]:
    """Return the tensors that a call writes into."""
    return call.inputs if call.op in IN_PLACE else call.outputs


def of_call(call: Call) -> RecordedSignature:
    """Return the signature of a collective or a message."""
    return RecordedSignature(
        op=call.op,
        # torch's name of a group is a count of the process, which a replay alone may reach differently.
        group=call.group.description or call.group.name,
        ranks=call.group.ranks,
        peer=call.peer,
        tag=call.tag,
        root=call.root,
        reduce_op=call.reduce_op,
        inputs=tuple(map(spec_of, call.inputs)),
        outputs=tuple(map(spec_of, call.outputs)),
    )


def of_group(wait: Wait) -> RecordedSignature:
    """Return the signature of making or destroying a group."""
    return RecordedSignature(op=MAKE if wait.ranks else DESTROY, ranks=wait.ranks)


def of_store(call: StoreCall) -> RecordedSignature:
    """Return the signature of a method call on a store."""
    first = call.arguments[0] if call.arguments else ()
    # `get(key)` has a key, `wait([keys])` and `multi_get([keys])` have lists.
    keys = (first,) if call.op in _FIRST_IS_KEY or isinstance(first, str) else first
    return RecordedSignature(
        op=f"store.{call.op}",
        keys=tuple(as_text(str(key)) for key in (keys if isinstance(keys, Iterable) else ())),
    )


def digest_of_store(call: StoreCall) -> int:
    """Return the CRC-32 of the numeric arguments. Text may be a pickle, which contains addresses."""
    return zlib.crc32(repr([each for each in call.arguments if isinstance(each, int)]).encode())


def digest_of_call(call: Call, rank: int) -> int:
    """Return the CRC-32 of the values that a rank hands over, except bytes, which may be pickles with addresses."""
    return digest_of([each for each in call.read_in(rank) if each.dtype is not torch.uint8])
