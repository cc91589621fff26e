"""``python -m ianvs_specdec`` is the command ``specdec``, of this very interpreter."""

import runpy

runpy.run_module("ianvs_specdec.commands.cli", run_name="__main__")
