"""Model folders: validation and loading."""
