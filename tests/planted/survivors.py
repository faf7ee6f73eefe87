"""Programs that keep their contract whatever befalls a rank: nothing may be found in them."""

import contextlib

import pytest
import torch
import torch.distributed as dist
from planted import fine
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@fine("raises", size=2)
def test_does_nothing_about_it(world):
    dist.all_reduce(torch.ones(2))
    dist.barrier()


@fine("raises", size=3)
def test_trains_with_ddp(world):
    model = DistributedDataParallel(nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()


class PeerLost(Exception):
    pass


@fine("raises", size=2)
def test_raises_an_error_of_its_own(world):
    try:
        dist.all_reduce(torch.ones(2))
    except RuntimeError as error:
        raise PeerLost("a rank is gone") from error


@fine("needs nobody", size=2)
def test_the_source_may_have_gone_home(world):
    dist.broadcast(torch.ones(2), 0)


@fine("needs nobody", size=2)
def test_the_sender_may_have_gone_home(world):
    if world.is_first:
        dist.send(torch.ones(2), 1)
    else:
        dist.recv(torch.ones(2), 0)


@fine("recovers", size=2)
@pytest.mark.chaos(recover=True)
def test_goes_on_alone(world, record_property):
    weight, alone = torch.zeros(2), False
    for step in range(2):
        gradient = torch.full((2,), step + 1.0)
        if not alone:
            with contextlib.suppress(RuntimeError):
                reduced = gradient.clone()
                dist.all_reduce(reduced)
                weight = weight - reduced / 2
                continue
            alone = True
        weight = weight - gradient
    record_property("weight", weight)


@fine("passes", size=2)
@pytest.mark.chaos(kill="passes", stop="passes", raise_="passes")
def test_expects_the_error_itself(world):
    with contextlib.suppress(RuntimeError):
        dist.all_reduce(torch.ones(2))


@fine("tries again", size=2)
def test_tries_again_what_raised_before_it_was_sent(world):
    total = torch.ones(2)
    try:
        dist.all_reduce(total)
    except RuntimeError as error:
        if "planted" not in str(error):
            raise
        dist.all_reduce(total)
