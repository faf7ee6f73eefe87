"""A few seconds that tell whether ranks find each other at all: rendezvous, one collective of each kind, a barrier."""
