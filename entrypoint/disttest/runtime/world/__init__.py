"""The process of a world: starts the ranks, receives their messages, judges their tests, ends them."""
