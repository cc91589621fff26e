"""Routers that go on learning from feedback while queries are answered."""
