"""The pytest process: collects once, gives tests to worlds, and reports what they say."""
