"""Process trees with CPU and memory accounting, and the counters of the machine."""
import contextlib
import os
import re
import resource
import signal
import socket
import subprocess
import time

from runner.settings import PORT, WORK

CPUACCT = "/sys/fs/cgroup/cpuacct"
TICKS = os.sysconf("SC_CLK_TCK")


def stat_fields(pid):
    """Returns the fields of /proc/PID/stat after the command; the first one is the state."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()


class Process:
    """A process with all its descendants.

    CPU time comes from a cpuacct cgroup (v1) if possible. Under cgroup v2 it is the sum of
    /proc/PID/stat over the session, in ticks of 10 ms.
    """

    def __init__(self, name, argv, env=None, core=0):
        self.name = name
        self.cgroup = self.new_cgroup()

        def before_exec():
            os.setsid()
            if self.cgroup:
                with open(self.cgroup + "/cgroup.procs", "w") as file:
                    file.write(str(os.getpid()))
            os.sched_setaffinity(0, {core})
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

        with open(f"{WORK}/{name}.log", "ab") as log:
            self.popen = subprocess.Popen(argv, env=env, preexec_fn=before_exec, stdout=log,
                                          stderr=log, stdin=subprocess.DEVNULL)

    def new_cgroup(self):
        """Creates the cgroup and returns its folder, or None without the controller."""
        folder = f"{CPUACCT}/pb{PORT}-{self.name}"
        try:
            open(CPUACCT + "/cpuacct.usage").close()
            os.makedirs(folder, exist_ok=True)
            open(folder + "/cgroup.procs").close()
        except OSError:
            return None
        return folder

    def pids(self):
        """Returns the processes of the cgroup, or of the session."""
        if self.cgroup:
            with open(self.cgroup + "/cgroup.procs") as file:
                return [int(line) for line in file]
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                if int(stat_fields(name)[3]) == self.popen.pid:
                    found.append(int(name))
            except OSError:
                pass
        return found

    def cpu(self):
        """Returns the CPU time so far, in seconds."""
        if self.cgroup:
            with open(self.cgroup + "/cpuacct.usage") as file:
                return int(file.read()) / 1e9
        return sum(self.user_and_system()) / TICKS

    def user_and_system(self):
        """Returns the ticks in user mode and in the kernel of the processes that live."""
        user = system = 0
        for pid in self.pids():
            try:
                fields = stat_fields(pid)
            except OSError:
                continue
            user += int(fields[11])
            system += int(fields[12])
        return user, system

    def pss(self):
        """Returns the proportional set size of all processes, in KiB."""
        total = 0
        for pid in self.pids():
            try:
                with open(f"/proc/{pid}/smaps_rollup") as lines:
                    total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            except OSError:
                pass
        return total

    def pin(self, cores):
        """Lets all threads run on these cores only, for instance {0}."""
        for pid in self.pids():
            try:
                for thread in os.listdir(f"/proc/{pid}/task"):
                    os.sched_setaffinity(int(thread), cores)
            except OSError:
                pass

    def stop(self):
        """Ends all processes: SIGTERM, and after two seconds SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.end_by(number):
                break
        try:
            self.popen.wait(2)
        except subprocess.TimeoutExpired:
            pass
        if self.cgroup:
            try:
                os.rmdir(self.cgroup)
            except OSError:
                pass

    def end_by(self, number):
        """Sends a signal to all processes. Returns whether they ended within two seconds."""
        for pid in self.pids():
            try:
                os.kill(pid, number)
            except OSError:
                pass
        for _ in range(20):
            self.popen.poll()
            if not self.pids():
                return True
            time.sleep(0.1)
        return False


def idle_seconds():
    """Returns {core: seconds that it was idle or waited for input and output}."""
    found = {}
    with open("/proc/stat") as lines:
        for line in lines:
            if line.startswith("cpu") and line[3].isdigit():
                fields = line.split()
                found[int(fields[0][3:])] = (int(fields[4]) + int(fields[5])) / TICKS
    return found


def task_seconds():
    """Returns {core: CPU time of all tasks, except the thread for softirqs}; {} without the cpuacct
    controller. Softirqs on top of a task count as its time."""
    try:
        with open(CPUACCT + "/cpuacct.usage_percpu") as file:
            found = dict(enumerate(int(word) / 1e9 for word in file.read().split()))
    except OSError:
        return {}
    for pid in KSOFTIRQD:
        with open(f"/proc/{pid}/comm") as name, open(f"/proc/{pid}/schedstat") as times:
            found[int(name.read().split("/")[1])] -= int(times.read().split()[0]) / 1e9
    return found


def kernel_threads(name):
    """Returns the processes that have NAME/CORE as their names."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as file:
            if file.read().startswith(name + "/"):
                found.append(int(pid))
    return found


def available_memory():
    """Returns MemAvailable in KiB."""
    with open("/proc/meminfo") as file:
        return int(re.search(r"MemAvailable:\s+(\d+)", file.read())[1])


def is_listening(port, seconds=20):
    """Returns whether a program listens on a port of 127.0.0.1, waiting for it this long."""
    end = time.time() + seconds
    while time.time() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True
        except OSError:
            time.sleep(0.1)
    return False


KSOFTIRQD = kernel_threads("ksoftirqd")
