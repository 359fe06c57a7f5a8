"""``python gradfix/run/child COMMAND``: loads this folder as the package ``_gradfix_child`` and hands over.

The syntax of this one file is kept so old that an interpreter which is too old can still say so.
"""

import sys

OLDEST = (3, 9)


def load(folder):
    # type: (str) -> None
    """Make the folder importable as ``_gradfix_child`` and leave no trace of it on sys.path."""
    import importlib.util
    import os

    if sys.path and os.path.realpath(sys.path[0]) == os.path.realpath(folder):
        del sys.path[0]
    spec = importlib.util.spec_from_file_location(
        "_gradfix_child", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    package = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules["_gradfix_child"] = package
    spec.loader.exec_module(package)  # type: ignore[union-attr]


def main():
    # type: () -> int
    """Do what the first argument says."""
    import os

    if sys.version_info < OLDEST:
        sys.stderr.write("gradfix-too-old: Python %d.%d\n" % sys.version_info[:2])  # noqa: UP031
        return 3
    load(os.path.dirname(os.path.abspath(__file__)))
    import importlib

    command = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if command in ("serve", "cold"):
        importlib.import_module("_gradfix_child." + command).main(sys.argv[1:])
        return 0
    return int(importlib.import_module("_gradfix_child.record").main(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
