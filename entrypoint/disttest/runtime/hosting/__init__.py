"""Hosting of test classes that play the main process and start their ranks by themselves.

The world forks one main process for each class; it runs the tests' whole pytest protocol, and the ranks
it starts are forked from it and supervised in it, by the same supervisor that a world has.
"""
