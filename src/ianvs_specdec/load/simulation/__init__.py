"""A server with its users on a clock that is only counted: the engine and the lengths are the real ones, what computes
is a cost table, and what is accepted comes of recorded answers."""
