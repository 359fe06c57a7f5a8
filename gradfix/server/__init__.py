"""The language server: what check and fix know, while a file is being written.

`features` speaks the protocol with what `app`, the server, knows; `documents` knows where things are in an editor's
buffers; `readers` asks processes of its own (`forks`) to read; `proving` runs a script, once somebody asks for it.
"""
