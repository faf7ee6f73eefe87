"""Client side of a run on a cluster: divide it into jobs, keep nodes in step, judge."""
