"""Model folders: validated before use, loaded only if complete and consistent."""
