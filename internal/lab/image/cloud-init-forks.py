#!/usr/bin/python3
"""Runs cloud-init's stages as forks of one process that has imported cloud-init.

A boot starts cloud-init five times, and under emulation each import of its
modules takes five seconds. A request is a line in a FIFO, "PID ARGUMENT...",
by the wrapper that stands in cloud-init's place (tune.sh). The stage has the
files, the environment and the directory of that process where they can be
opened; its exit status goes to the FIFO reply.PID.
"""

import gc
import importlib
import os
import sys

RUN = "/run/lab-cloud-init"


def preload():
    """Imports what the stages of a NoCloud guest import."""
    from cloudinit import settings
    from cloudinit.cmd import main

    names = ["cloudinit.cmd.status", "cloudinit.sources.DataSourceNoCloud", "cloudinit.distros.debian"]
    names += ["cloudinit.net.networkd", "cloudinit.net.netplan", "cloudinit.net.eni"]
    names += ["cloudinit.config.cc_" + name for name in (
        "bootcmd", "write_files", "growpart", "resizefs", "set_hostname", "update_hostname", "update_etc_hosts",
        "users_groups", "ssh", "set_passwords", "timezone", "runcmd", "package_update_upgrade_install",
        "write_files_deferred", "scripts_per_once", "scripts_per_boot", "scripts_per_instance", "scripts_user",
        "phone_home", "final_message", "power_state_change")]
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as err:
            print(f"not preloaded: {err}", file=sys.stderr)
    return main


def stage(main, pid, arguments):
    """Runs cloud-init in the place of the process pid; returns its exit status."""
    for fd, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY | os.O_APPEND), (2, os.O_WRONLY | os.O_APPEND)):
        try:
            os.dup2(os.open(f"/proc/{pid}/fd/{fd}", mode), fd)
        except OSError:
            pass  # a socket, such as the journal's: this process has its own
    os.chdir(f"/proc/{pid}/cwd")
    with open(f"/proc/{pid}/environ", "rb") as file:
        given = [entry.partition(b"=") for entry in file.read().split(b"\0") if entry]
    os.environ.clear()
    os.environb.update({name: value for name, _, value in given})
    sys.argv = ["/usr/bin/cloud-init", *arguments]
    try:
        return main.main()
    except SystemExit as end:
        return end.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def serve(main, pid, arguments):
    """Runs a stage in a fork and answers the process pid, however that ends."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = stage(main, pid, arguments)
            code = code if isinstance(code, int) else int(bool(code))
        except BaseException as err:
            print(f"cloud-init {' '.join(arguments)}: {err!r}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with open(f"{RUN}/reply.{pid}", "w") as reply:
        print(status if status >= 0 else 128 - status, file=reply)


def run():
    requests = os.fdopen(os.open(f"{RUN}/request", os.O_RDWR))
    main = preload()
    gc.freeze()
    while True:
        pid, *arguments = requests.readline().split()
        if os.fork() == 0:
            if os.fork() == 0:  # the next process is nobody's child, so that it leaves no zombie
                serve(main, pid, arguments)
            os._exit(0)
        os.wait()


if __name__ == "__main__":
    run()
