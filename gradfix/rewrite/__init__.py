"""What codemods share: names and storages read from the text, in-place code spelled, statements built and moved."""
