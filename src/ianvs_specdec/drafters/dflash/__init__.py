"""DFlash: a small transformer drafts a whole block of tokens in one forward pass."""
