"""The command ``disttest launch``."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from disttest import __version__
from disttest.host.devices import detect_machine
from disttest.launch.gpus import HostGpu
from disttest.launch.prepare import IMAGE, LaunchOptions
from disttest.launch.session import launch as run_launch
from disttest.launch.session import preview
from disttest.launch.spec import container_arguments
