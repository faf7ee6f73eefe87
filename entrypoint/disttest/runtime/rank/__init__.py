"""The process of a rank: runs tests on the orders of its world, and imports nothing of the processes above it."""
