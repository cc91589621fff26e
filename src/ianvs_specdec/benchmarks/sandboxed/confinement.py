"""Take away from this process what a program under test must not have, as far as the system can.

Linux: namespaces of its own (no other process, no network, no file system that could be changed), Landlock (only
Python's library can be read, nothing can be made or started, no signal leaves), no rights, and death with the process
that started it. Everywhere: limits on time, memory, files and processes.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import struct
import sys
from collections.abc import Callable
from typing import Any

NOBODY = 65534
NAMESPACES, LANDLOCK, NO_ROOT, LIMITS = "namespaces", "landlock", "no root", "limits"
"""What ``confine`` says that it has done."""

_NEW_NET, _NEW_USER, _NEW_REST = 0x40000000, 0x10000000, 0x20000000 | 0x00020000 | 0x08000000 | 0x04000000
"""Flags of unshare: network; users; processes, mounts, System V objects and host name."""
_DIE_WITH_PARENT, _DUMPABLE, _NO_NEW_RIGHTS = 1, 4, 38
"""Options of prctl."""
_PRIVATE = 1 << 18 | 1 << 14
"""Flags of mount: what is mounted from here on stays here, at all depths."""
_MOUNT_SETATTR, _RULESET, _RULE, _RESTRICT = 442, 444, 445, 446
"""Numbers of system calls, the same on all processors that Linux has been brought to since 2011."""
_HERE, _ALL_DEPTHS = -100, 0x8000
"""Arguments of mount_setattr."""
_READ_FILE, _READ_FOLDER, _WRITE_FILE = 1 << 2, 1 << 3, 1 << 1
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Version of Landlock -> how many rights over files it knows; later ones know as many as the last."""
_STANDARD = os.path.dirname(os.path.realpath(os.__file__))
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/usr/share/zoneinfo")

_Call = Callable[..., int]


def confine(seconds: int, memory: int, folder: str, keep: tuple[int, ...]) -> list[str]:
    """Confine this process; it may go on as a child of itself. Its open files are ``keep`` and the null device, its
    folder is ``folder``. Returns what was done.
    """
    _close_all_but(keep)
    os.setpgid(0, 0)
    os.chdir(folder)
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    done = [NO_ROOT] if _become_nobody() else []
    if libc is not None:
        # A change of user makes the files of this process under /proc root's.
        libc.prctl(_DUMPABLE, 1, 0, 0, 0)
        done += [NAMESPACES] if _leave(libc) else []
        _drop_rights(libc)
        done += [LANDLOCK] if _landlock(libc.syscall, folder) else []
        # Changes of user and rights have made the system forget it.
        _die_with_parent(libc)
    _limit(seconds, memory)
    return [*done, LIMITS]


def _close_all_but(keep: tuple[int, ...]) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    first = 3
    for descriptor in sorted(keep):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, min(most, 1 << 16))
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115


def _become_nobody() -> bool:
    """Root is bound by few limits. Only where everybody may read Python's own library."""
    if os.geteuid() != 0:
        return True
    folder = _STANDARD
    while os.stat(folder).st_mode & 0o005 == 0o005 and folder != "/":
        folder = os.path.dirname(folder)
    if folder != "/":
        return False
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    return True


def _leave(libc: Any) -> bool:
    """Go into namespaces of its own, as the first process of them. False where the system does not permit it."""
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(_NEW_USER | _NEW_NET | _NEW_REST) == 0:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{NOBODY} {user} 1"),
            ("gid_map", f"{NOBODY} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    elif libc.unshare(_NEW_NET | _NEW_REST) != 0:
        return False
    _die_with_parent(libc)
    end, held = os.pipe()
    if (child := os.fork()) != 0:
        _stand_by(child, held)
    os.close(held)
    _die_with_parent(libc)
    # The parent may have died before that was said.
    if select.select([end], [], [], 0)[0]:
        os._exit(1)
    os.close(end)
    _seclude(libc)
    return True


def _seclude(libc: Any) -> None:
    """Make all that is mounted unchangeable, and /proc that of the own processes."""
    libc.mount.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_ulong, ctypes.c_char_p]
    libc.mount(None, b"/", None, _PRIVATE, None)
    libc.mount(b"proc", b"/proc", b"proc", 0, None)
    read_only = ctypes.create_string_buffer(struct.pack("=4Q", 1, 0, 0, 0))
    libc.syscall(_MOUNT_SETATTR, _HERE, b"/", _ALL_DEPTHS, read_only, 32)


def _stand_by(child: int, held: int) -> None:
    """Be nothing but the parent: end as the child ends."""
    os.closerange(0, held)
    os.closerange(held + 1, 1 << 10)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _landlock(syscall: _Call, folder: str) -> bool:
    """Only what Python needs can be read; nothing can be written, made, removed or started; no signal gets out."""
    version = syscall(_RULESET, None, 0, 1)
    if version < 1:
        return False
    rights = (1 << _FILE_RIGHTS.get(version, 16)) - 1
    fields = [rights] + [3] * (version >= 4) + [3] * (version >= 6)
    attributes = ctypes.create_string_buffer(struct.pack(f"={len(fields)}Q", *fields))
    rules = syscall(_RULESET, attributes, 8 * len(fields), 0)
    if rules < 0:
        return False
    for path in (_STANDARD, f"{sys.base_prefix}/lib", f"{sys.base_prefix}/lib64", *_LIBRARIES, folder):
        _permit(syscall, rules, path, _READ_FILE | _READ_FOLDER)
    for path in ("/dev/null", "/dev/urandom", "/dev/random", "/dev/zero"):
        _permit(syscall, rules, path, _READ_FILE | (_WRITE_FILE if path == "/dev/null" else 0))
    done = syscall(_RESTRICT, rules, 0) == 0
    os.close(rules)
    return done


def _permit(syscall: _Call, rules: int, path: str, rights: int) -> None:
    try:
        # O_PATH: to name it, not to read it.
        descriptor = os.open(path, 0o10000000 | os.O_CLOEXEC)
    except OSError:
        return
    rights = rights if os.path.isdir(path) else rights & ~_READ_FOLDER
    syscall(_RULE, rules, 1, ctypes.create_string_buffer(struct.pack("=Qi", rights, descriptor)), 0)
    os.close(descriptor)


def _drop_rights(libc: Any) -> None:
    """What the first process of a namespace may do in it, it could use to undo the rest."""
    libc.prctl(_NO_NEW_RIGHTS, 1, 0, 0, 0)
    header = ctypes.create_string_buffer(struct.pack("=Ii", 0x20080522, 0))
    libc.capset(header, ctypes.create_string_buffer(24))


def _die_with_parent(libc: Any) -> None:
    libc.prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)


def _limit(seconds: int, memory: int) -> None:
    for kind, most in (
        ("RLIMIT_CPU", seconds),
        ("RLIMIT_AS", memory),
        ("RLIMIT_CORE", 0),
        ("RLIMIT_FSIZE", 0),
        ("RLIMIT_NOFILE", 64),
        ("RLIMIT_NPROC", 0),
    ):
        if hasattr(resource, kind):
            resource.setrlimit(getattr(resource, kind), (most, most))
