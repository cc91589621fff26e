"""The report on a workspace: what Ianvs left behind, read into plain data, and one page that shows it.

``workspace`` reads the folders, ``figures`` computes what the leaderboard and the charts show, ``routing`` the
cost-quality curves, ``details`` single queries; ``collect`` puts them into one JSON document and ``page`` makes HTML of
it.
"""
