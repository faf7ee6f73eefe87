"""One layer that sees every collective of this process, and tells tools of it."""

from disttest.observe.records import ANY_SOURCE, Call, Group, Site, Wait, WaitKind
from disttest.observe.tool import Tool

__all__ = ["ANY_SOURCE", "Call", "Group", "Site", "Tool", "Wait", "WaitKind"]
