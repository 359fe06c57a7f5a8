"""One warm interpreter for the whole suite, also where gradfix was installed before it had a pytest plugin."""

import os

from gradfix.pytest_plugin import zygote

__all__ = ["zygote"]

os.environ.setdefault("OMP_NUM_THREADS", "1")

collect_ignore = ["third_party"]  # test_third_party.py installs it first
