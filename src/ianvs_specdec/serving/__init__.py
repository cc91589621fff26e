"""One back end behind the OpenAI chat completions protocol. ``protocol`` is what is said, ``engine`` who is served
when, ``metrics`` what is counted, ``app`` the endpoints, ``connections`` who stays connected, ``server`` the process
around them.
"""
