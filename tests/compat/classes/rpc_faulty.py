"""torch's suites for the agent that misbehaves; apart from the others, since its import renews an enum of torch's."""

from torch.testing._internal.distributed.rpc.dist_autograd_test import FaultyAgentDistAutogradTest
from torch.testing._internal.distributed.rpc.faulty_agent_rpc_test import FaultyAgentRpcTest
from torch.testing._internal.distributed.rpc.faulty_rpc_agent_test_fixture import FaultyRpcAgentTestFixture
from torch.testing._internal.distributed.rpc_utils import generate_tests

FAULTY = [FaultyAgentRpcTest, FaultyAgentDistAutogradTest]

globals().update(generate_tests("Faulty", FaultyRpcAgentTestFixture, FAULTY, __name__))
for _base in FAULTY:
    globals().pop(_base.__name__)
