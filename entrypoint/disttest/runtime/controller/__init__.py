"""The pytest process: collects once, assigns tests to worlds, and reports their results."""
