"""The ``ianvs`` command: run a benchmarking job, or only check it."""

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
    parser.add_argument("command", nargs="?", choices=["check"], help="check: validate the job, run nothing")
    parser.add_argument("-f", "--benchmarking_config_file", metavar="JOB", help="the job's YAML file")
    parser.add_argument("--fresh", action="store_true", help="ask all models anew instead of replaying earlier answers")
    parser.add_argument("--debug", action="store_true", help="show the full traceback of every error")
    parser.add_argument("-v", "--version", action="version", version=__version__)
    options = parser.parse_args(argv)
    if options.benchmarking_config_file is None:
        parser.error("which job? Give its file: ianvs -f benchmarkingjob.yaml")
    # Numpy among others, which `ianvs --help` can do without.
    from core.cmd.job import BenchmarkingJob
    from core.common.claim import claimed
    from core.testcasecontroller.testcase import plugin_environment

    if options.command is None:
        import core.storymanager.table  # noqa: F401 - what it needs is to be missed before anything is run
    try:
        check_surroundings()
        job = BenchmarkingJob(options.benchmarking_config_file)
        if options.command == "check":
            job.build_routers()
        tell("warning: ", job.problems.warnings.lines())
        job.check_workspace()
        if options.command == "check":
            tell("warning: ", job.problems.upstream.lines())
            print("\n".join((f"{job.file} is in order: {job.describe()}", *job.describe_rows())))
            return OK
        run_id = uuid.uuid4().hex
        with plugin_environment(), claimed(job.workspace, run_id):
            return run(job, run_id, options.fresh, options.debug)
    except KeyboardInterrupt:
        print("ianvs: interrupted before anything was run", file=sys.stderr)
        return exit_code(signal.SIGINT)
    except BrokenPipeError:
        # The leaderboard's reader has gone (ianvs ... | head); Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if options.debug:
            traceback.print_exc()
        return report(error)


def tell(kind: str, messages: Iterable[str]) -> None:
    for message in messages:
        print(f"ianvs: {kind}{message}", file=sys.stderr, flush=True)


def report(error: Exception) -> int:
    if isinstance(error, ConfigError):
        tell("warning: ", error.warnings)
        tell("", error.problems)
        return INVALID
    known = isinstance(error, WorkspaceError)
    tell("", [str(error) if known else f"a fault of the host itself: {explain(error)}; --debug shows where"])
    return FAILED


def run(job: BenchmarkingJob, run_id: str, fresh: bool, debug: bool) -> int:
    """Run all test cases and print the leaderboard. Leaves environment variables that tell plugins about the run."""
    # Plugins tell the answers of this run from earlier ones' by these; upstream Ianvs sets neither.
    os.environ["IANVS_RUN_ID"] = run_id
    if fresh:
        os.environ["IANVS_FRESH"] = "1"
    print(f"{job.name}: {job.describe()}", file=sys.stderr, flush=True)
    controller = job.controller(run_id, debug)
    with Interrupt(lambda: summary(job, controller)) as interrupt:
        try:
            failed = controller.run_testcases()
        except KeyboardInterrupt:
            interrupt.say()
            return interrupt.code
    for note in job.rank.plot([case.output_dir for case in job.test_cases]):
        print(note, file=sys.stderr)
    if controller.doubts:
        print(load.summary(controller.doubts, len(job.test_cases)), file=sys.stderr)
    if failed:
        print(f"{failed} of {len(job.test_cases)} test cases failed; the reasons stand above", file=sys.stderr)
    return FAILED if failed else OK


def summary(job: BenchmarkingJob, controller: TestCaseController) -> str:
    kept = f"{controller.finished} of {len(job.test_cases)} test cases are on the leaderboard in {job.rank.folder}"
    current = controller.current
    if current is not None and current.rows:
        kept += f"; {current.kept()}"
    return f"ianvs: interrupted; {kept}; run the same command again to go on"


def check_surroundings() -> None:
    """ConfigError if another distribution owns the import name ``sedna`` too: of two, either one's files may win."""
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
