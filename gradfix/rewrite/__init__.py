"""What codemods share: reading names and storages from the text, spelling in-place code, building and moving statements."""
