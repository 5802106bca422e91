"""What the results were measured on."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

from bench.peers import kafka
from bench.peers.server import CACHE, ROOT


def _output(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    return (done.stdout or done.stderr).strip()


def _proc(name: str, key: str) -> str:
    for line in Path(f"/proc/{name}").read_text(encoding="utf-8").splitlines():
        if line.startswith(key):
            return line.partition(":")[2].strip()
    return "unknown"


def _file_system(folder: Path) -> str:
    """Return type and options of the mount that holds `folder`."""
    best: tuple[int, str] = (-1, "unknown")
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, point, kind, options, *_ = line.split()
        if folder.is_relative_to(point):
            best = max(best, (len(point), f"{kind} ({options})"))
    return best[1]


def facts(folder: Path) -> dict[str, str]:
    """Describe the machine, the software, the commit."""
    nats = CACHE / "go" / "bin" / "nats-server"
    # The results of rows that were measured just before are no change of what is measured.
    changed = _output("git", "status", "--porcelain", "-uno", "--", ".", ":!bench/results")
    dirty = " with local changes" if changed else ""
    return {
        "processor": f"{os.cpu_count()} x {_proc('cpuinfo', 'model name')}",
        "memory": _proc("meminfo", "MemTotal"),
        "system": f"{platform.system()} {platform.release()}",
        "file system": _file_system(folder.resolve()),
        "python": platform.python_version(),
        "java": (_output("java", "-version").splitlines() or ["none"])[0],
        "kafka": kafka.VERSION,
        "nats": _output(str(nats), "--version") if nats.exists() else "none",
        "commit": _output("git", "rev-parse", "--short", "HEAD") + dirty,
    }
