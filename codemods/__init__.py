"""The built-in codemods, one cure a file. Found through the entry-point group ``gradfix.codemods``."""
