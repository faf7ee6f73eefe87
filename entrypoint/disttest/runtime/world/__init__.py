"""The supervisor of the ranks of one world: starts them, hears them, ends them, and judges what they did."""
