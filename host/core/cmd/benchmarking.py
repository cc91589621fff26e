"""The ``ianvs`` command: runs or checks a benchmarking job."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from core.__version__ import __version__
from core.cmd.interrupt import Interrupt, exit_code
from core.common.errors import ConfigError, WorkspaceError, explain
from core.storymanager import load

if TYPE_CHECKING:
    from core.cmd.job import BenchmarkingJob
    from core.testcasecontroller.testcasecontroller import TestCaseController

OK, FAILED, INVALID = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="ianvs",
        description="Run a benchmarking job of KubeEdge Ianvs (paradigm jointinference) and print its leaderboard.",
        epilog="Exit codes: 0 done, 1 a test case failed, 2 the configuration is wrong, 130 Ctrl-C, 143 SIGTERM.",
    )
    parser.add_argument("command", nargs="?", choices=["check"], help="check: validate the job without running it")
    parser.add_argument("-f", "--benchmarking_config_file", metavar="JOB", help="the job's YAML file")
    parser.add_argument("--fresh", action="store_true", help="ignore earlier answers")
    parser.add_argument("--debug", action="store_true", help="show the full traceback of every error")
    parser.add_argument("-v", "--version", action="version", version=__version__)
    options = parser.parse_args(argv)
    if options.benchmarking_config_file is None:
        parser.error("-f is missing, for example: ianvs -f benchmarkingjob.yaml")
    # Imported here for the speed of `ianvs --help`.
    from core.cmd.job import BenchmarkingJob
    from core.common.run_lock import run_lock
    from core.testcasecontroller.testcase import plugin_environment

    if options.command is None:
        import core.storymanager.table  # noqa: F401 - fails before the run if a package is missing
    try:
        check_distributions()
        job = BenchmarkingJob(options.benchmarking_config_file)
        if options.command == "check":
            job.build_routers()
        print_errors("warning: ", job.problems.warnings.lines())
        job.check_workspace()
        if options.command == "check":
            print_errors("warning: ", job.problems.upstream.lines())
            print("\n".join((f"{job.file} is valid: {job.describe()}", *job.describe_rows())))
            return OK
        run_id = uuid.uuid4().hex
        with plugin_environment(), run_lock(job.workspace, run_id):
            return run(job, run_id, options.fresh, options.debug)
    except KeyboardInterrupt:
        print("ianvs: interrupted before the run", file=sys.stderr)
        return exit_code(signal.SIGINT)
    except BrokenPipeError:
        # As in `ianvs ... | head`. Python would print another error when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if options.debug:
            traceback.print_exc()
        return report(error)


def print_errors(prefix: str, messages: Iterable[str]) -> None:
    for message in messages:
        print(f"ianvs: {prefix}{message}", file=sys.stderr, flush=True)


def report(error: Exception) -> int:
    if isinstance(error, ConfigError):
        print_errors("warning: ", error.warnings)
        print_errors("", error.problems)
        return INVALID
    known = isinstance(error, WorkspaceError)
    print_errors("", [str(error) if known else f"internal error: {explain(error)}; --debug shows the traceback"])
    return FAILED


def run(job: BenchmarkingJob, run_id: str, fresh: bool, debug: bool) -> int:
    """Run all test cases and print the leaderboard. Sets the environment variables of the run for plugins."""
    os.environ["IANVS_RUN_ID"] = run_id
    if fresh:
        os.environ["IANVS_FRESH"] = "1"
    print(f"{job.name}: {job.describe()}", file=sys.stderr, flush=True)
    controller = job.controller(run_id, debug)
    with Interrupt(lambda: summary(job, controller)) as interrupt:
        try:
            failed = controller.run_testcases()
        except KeyboardInterrupt:
            interrupt.print_summary()
            return interrupt.code
    for note in job.rank.plot([case.output_dir for case in job.test_cases]):
        print(note, file=sys.stderr)
    if controller.doubts:
        print(load.summary(controller.doubts, len(job.test_cases)), file=sys.stderr)
    if failed:
        print(f"{failed} of {len(job.test_cases)} test cases failed; see the errors above", file=sys.stderr)
    return FAILED if failed else OK


def summary(job: BenchmarkingJob, controller: TestCaseController) -> str:
    kept = f"{controller.finished} of {len(job.test_cases)} test cases are on the leaderboard in {job.rank.folder}"
    current = controller.current
    if current is not None and current.rows:
        kept += f"; {current.kept()}"
    return f"ianvs: interrupted; {kept}; run the same command again to continue"


def check_distributions() -> None:
    """Raise ConfigError if another installed distribution has the import name ``sedna``."""
    import importlib.metadata

    try:
        other = importlib.metadata.distribution("sedna")
    except importlib.metadata.PackageNotFoundError:
        return
    about = f"the installed distribution 'sedna' {other.version}"
    if any("kubeedge" in text.lower() for text in other.metadata.get_all("Home-page") or ()):
        raise ConfigError([
            f"{about} is KubeEdge Sedna, which this host replaces. Use upstream Ianvs in this environment "
            "(pip uninstall ianvs-specdec-host), or this host in another one"
        ])  # fmt: skip
    raise ConfigError([
        f"{about} is an unrelated mathematics package of the same import name, not KubeEdge Sedna. "
        "Remove both and install this host again: pip uninstall sedna ianvs-specdec-host"
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
