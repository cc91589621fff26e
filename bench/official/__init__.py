"""Side-by-side measurements with the published packages of the methods: eagle-llm and lade, as they are on the index.

Each runs unpatched in an environment and a process of its own, as its back end runs it, and so do we
(``ours_driver.py``). The parent asks them in turn, one prompt at a time.
"""
