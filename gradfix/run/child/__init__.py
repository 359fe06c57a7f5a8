"""The half of a run that lives in the user's interpreter: standard library and torch only, Python 3.9 on.

Started as a folder (``python .../run/child serve``), it loads itself as the package ``_gradfix_child``, so
that neither gradfix has to be installed there nor a module of the user's is hidden. On the host the same
modules are ``gradfix.run.child.*``.
"""
