"""One call of a command, once its options are read: what was asked for in, reports out, an exit code."""
