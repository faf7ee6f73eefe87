"""What torchrun starts: adds up, or fails, crashes or hangs, as its argument says."""

import signal
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
match sys.argv[1]:
    case "fails":
        assert total == 3
    case "crashes":
        signal.raise_signal(signal.SIGSEGV)
    case "hangs":
        time.sleep(600)
dist.destroy_process_group()
