"""A test case behind the endpoint: its router decides which of its models answers a chat. ``case`` reads it from the
job's files, ``gateway`` serves it, ``policies`` are the names of its thresholds, ``edge`` is the edge model as routers
ask it, ``metrics`` what is counted.
"""
