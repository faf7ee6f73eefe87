"""What test authors import: the world that a test runs in.

Importing this package does not import torch.
"""

from disttest.testing.world import World, current_world

__all__ = ["World", "current_world"]
