"""Load as a benchmark: the same arrivals driven through each speculation policy in turn. ``plan`` is what is asked,
``arrivals`` and ``traces`` when requests come, ``generator`` the process that sends them, ``servers`` what answers,
``watching`` what both tell meanwhile, ``rounds`` what is kept, ``sweep`` the order, ``results`` and ``figure`` what
comes of it.
"""
