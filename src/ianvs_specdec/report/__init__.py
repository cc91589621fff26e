"""The report on a workspace: leaderboard, charts and single queries as one JSON document and one HTML page.

``collect`` builds the document from ``figures`` (leaderboard and distributions), ``curves`` (cost and quality),
``split`` and ``sweeps`` (other charts), ``details`` (single queries) and ``notes``; ``page`` renders it.
"""
