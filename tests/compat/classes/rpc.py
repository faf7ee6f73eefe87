"""torch's RPC, distributed autograd and distributed optimizer suites over TensorPipe, ready to be collected."""

from torch.testing._internal.distributed.rpc.dist_autograd_test import (
    DistAutogradTest,
    TensorPipeAgentDistAutogradTest,
)
from torch.testing._internal.distributed.rpc.dist_optimizer_test import DistOptimizerTest
from torch.testing._internal.distributed.rpc.rpc_test import RpcTest, TensorPipeAgentRpcTest
from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import (
    TensorPipeRpcAgentTestFixture,
)
from torch.testing._internal.distributed.rpc_utils import generate_tests

TENSORPIPE = [
    RpcTest,
    DistAutogradTest,
    DistOptimizerTest,
    TensorPipeAgentRpcTest,
    TensorPipeAgentDistAutogradTest,
]

globals().update(generate_tests("TensorPipe", TensorPipeRpcAgentTestFixture, TENSORPIPE, __name__))
for _base in TENSORPIPE:
    globals().pop(_base.__name__)
