"""Fixes that travel: written with what was measured of them, and placed in a tree that has drifted since.

values.py   what a patch file holds
file.py     the file: written, and read from whoever sends it
make.py     a Result's change as a fix: hunks with as much context as tells their place from every other
lines.py    a line of Python for comparison: its tokens, what was renamed, how it is indented
names.py    where a file binds its names
uses.py     what each statement of a function reads and binds: reaching definitions
flow.py     what the changed lines have to do with the others: compared between the source of a fix and its new place
fit.py      where a hunk may belong in a text, and how well it fits there
"""
