"""One module for each subcommand of ``specdec``: ``add_arguments(parser)`` and ``run(options) -> exit code``."""
