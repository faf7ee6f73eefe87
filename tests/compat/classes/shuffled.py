"""A plugin of pytest: the tests of a file in another order, by the seed in ``ORDER``."""

import os
import random


def pytest_collection_modifyitems(items):
    random.Random(int(os.environ["ORDER"])).shuffle(items)
