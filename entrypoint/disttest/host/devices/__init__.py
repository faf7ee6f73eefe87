"""The devices of this machine. :func:`detect_machine` finds them and never imports torch."""

from disttest.host.devices.detect import detect_machine
from disttest.host.devices.machine import Gpu, Machine

__all__ = ["Gpu", "Machine", "detect_machine"]
