"""Load as a benchmark: the same arrivals driven through each speculation policy in turn.

``plan`` has the options, ``arrivals`` and ``traces`` the requests, ``generator`` the process that sends them,
``servers`` the servers, ``rounds`` what is kept of a round, ``sweep`` the order of rounds, ``results``, ``tables`` and
``figure`` the results; ``simulation`` does the same in simulated time.
"""
