"""A scheduler that is a list of hosts: ``disttest run tests --launcher hosts --partition n1,n2``."""

from disttest.hookspecs import hookimpl


@hookimpl
def disttest_schedulers():
    return {"hosts": "disttest_hosts.scheduler"}
