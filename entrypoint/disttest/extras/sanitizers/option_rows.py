"""Option ``--sanitize``, and the options of ``disttest diverge``."""

from __future__ import annotations

from disttest.extras.sanitizers.choice import FORM, Chosen, parse_chosen, show_chosen
from disttest.options.option import of_every_run, rows_of
from disttest.options.values import RATIO, Type, text

SANITIZE = of_every_run(
    "sanitize",
    Type(form=FORM, parse=parse_chosen, show=show_chosen),
    "Look for more faults in tests that pass; a finding fails the test, or is a warning with :warn.",
    # A warning by default: a finding has passed on this backend.
    default=(Chosen(name="order", fails=False),),
    repeated=True,
)
_diverge = rows_of("diverge")

OPTIONS = (
    SANITIZE,
    _diverge("test", text("TEXT"), "Compare tests whose id contains this.", otherwise="all"),
    _diverge(
        "tolerance",
        RATIO,
        "Relative tolerance of numbers.",
        otherwise="every bit counts",
    ),
)
