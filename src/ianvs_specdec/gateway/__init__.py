"""A test case behind the endpoint: its router decides which of its models answers a chat. ``case`` reads it from the
job's files, ``gateway`` serves it, ``policies`` are the names of its thresholds, ``legs`` are the requests on
their way, ``metrics`` is what is counted.
"""
