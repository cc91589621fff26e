"""The embedded benchmark: an invented world, a knowledge set and an open-ended set, all generated from one seed."""
