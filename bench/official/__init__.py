"""Side-by-side measurements with the published packages of the methods: eagle-llm and lade, as they are on the index.

Each runs unpatched in an environment of its own, in a process of its own (``eagle_driver.py``, ``lade_driver.py``), and
so do we (``ours_driver.py``); the parent asks them in turn, one prompt at a time.
"""
