"""measure: start one command, wait for it, say what it used.

Run as a script by a bare interpreter (`python -I -S measure.py STDOUT STDERR COMMAND...`), so that this process is
smaller than any arm. That matters: on Linux a new process inherits the peak memory of the process it was started from
(`exec_mmap` in fs/exec.c keeps the old high-water mark), so an arm started by the harness itself would be charged with
the harness. What remains is the bare interpreter's 8 MiB: smaller peaks read as 8 MiB.

Prints one JSON object: `status` (negative: the signal), `wall_s`, `user_s`, `system_s`, `peak_rss_bytes`. The figures
are the kernel's (wait4(2)): CPU time of the command and of all its descendants that were waited for; peak resident
memory of the largest single process among them, mapped files included.

It does not import json, subprocess or anything else that would make it grow.
"""

import os
import sys
import time


def main(stdout_path: str, stderr_path: str, *command: str) -> None:
    """Run the command with its output in the two files and print its figures."""
    write_new = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    redirections = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, stdout_path, write_new, 0o644),
        (os.POSIX_SPAWN_OPEN, 2, stderr_path, write_new, 0o644),
    ]
    started_s = time.perf_counter()
    pid = os.posix_spawnp(command[0], command, os.environ, file_actions=redirections)
    _, status, used = os.wait4(pid, 0)
    wall_s = time.perf_counter() - started_s
    print(
        f'{{"status": {os.waitstatus_to_exitcode(status)}, "wall_s": {wall_s:.6f}, "user_s": {used.ru_utime:.6f}, '
        f'"system_s": {used.ru_stime:.6f}, "peak_rss_bytes": {used.ru_maxrss * 1024}}}'
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
