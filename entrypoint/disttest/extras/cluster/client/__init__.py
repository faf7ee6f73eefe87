"""The client's side of a run on a cluster: divides it into jobs, keeps nodes in step, judges."""
