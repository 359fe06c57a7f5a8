"""The command ``gradfix``, also as ``python -m gradfix``."""

from __future__ import annotations

import os
from typing import NoReturn


def main() -> NoReturn:
    """As :func:`gradfix.cli.main`; Ctrl-C before that is there ends in 130 without a traceback, too."""
    try:
        from gradfix import cli
    except KeyboardInterrupt:
        os._exit(130)  # whatever is half imported is not asked
    cli.main()


if __name__ == "__main__":
    main()
