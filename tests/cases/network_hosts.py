"""Two hosts that are network namespaces of this machine, with a network between them."""

import contextlib
import os
import shutil
import subprocess
import time
from dataclasses import dataclass

import pytest

LAUNCHER = """#!/bin/sh
# Instead of ssh: LAUNCHER [OPTION ...] HOST COMMAND ...
while [ "${1#-}" != "$1" ]; do shift; done
case $1 in *.1) host=%(name)s1;; *) host=%(name)s2;; esac
shift
exec ip netns exec $host unshare --uts sh -c "hostname $host; $*"
"""


@dataclass(frozen=True)
class Hosts:
    """The hosts 1 and 2, whose interfaces are called net0."""

    program: str
    name: str

    def on(self, number):
        """Beginning of a command that a host is to run."""
        return [self.program, "netns", "exec", f"{self.name}{number}"]

    def address(self, number):
        return f"10.213.7.{number}"

    def ip(self, *words, check=True):
        command = [self.program, *words]
        return subprocess.run(command, check=check, capture_output=True, text=True).stdout

    def cut(self):
        """Take the network away."""
        self.ip("-n", f"{self.name}2", "link", "set", "net0", "down")

    def join(self):
        """Bring the network up, and wait until it is: UCX looks once which interfaces are."""
        for number in "12":
            self.ip("-n", f"{self.name}{number}", "link", "set", "net0", "up")
        last_s = time.monotonic() + 60
        for number in "12":
            while "state UP" not in self.ip("-n", f"{self.name}{number}", "link", "show", "net0"):
                assert time.monotonic() < last_s
                time.sleep(0.05)
        for number in "12":  # that the other host could not be found is remembered for a while
            self.ip("-n", f"{self.name}{number}", "neighbour", "flush", "dev", "net0", "nud", "all")

    def received_bytes(self):
        """Bytes that have come to host 1."""
        count = [*self.on(1), "cat", "/sys/class/net/net0/statistics/rx_bytes"]
        return int(subprocess.run(count, capture_output=True, check=True).stdout)

    def launcher(self, folder):
        """Write what launchers of MPI can start instead of ssh; returns its path."""
        path = folder / "launcher"
        path.write_text(LAUNCHER % {"name": self.name})
        path.chmod(0o755)
        return path


@contextlib.contextmanager
def network_hosts():
    """Make the hosts; skips the test where that is not permitted."""
    program = shutil.which("ip", path=f"{os.environ['PATH']}:/sbin:/usr/sbin")
    if program is None or os.geteuid():
        pytest.skip("network namespaces need root and iproute2")
    hosts = Hosts(program, f"fp{os.getpid() % 100_000}h")
    try:
        try:
            for number in "12":
                hosts.ip("netns", "add", f"{hosts.name}{number}")
            peer = ("peer", "name", "net0", "netns", f"{hosts.name}2")
            hosts.ip("link", "add", "net0", "netns", f"{hosts.name}1", "type", "veth", *peer)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces: {error.stderr}")
        for number in "12":
            inside = ("-n", f"{hosts.name}{number}")
            hosts.ip(*inside, "address", "add", f"{hosts.address(number)}/24", "dev", "net0")
            hosts.ip(*inside, "link", "set", "lo", "up")
        hosts.join()
        yield hosts
    finally:
        for number in "12":
            hosts.ip("netns", "delete", f"{hosts.name}{number}", check=False)
