"""The process above each host: it starts systemd-nspawn, and again when the host reboots."""

from collections.abc import Sequence
from pathlib import Path

from tests.hosts.rig.commands import ENVIRONMENT

NSPAWN_ENVIRONMENT = {
    **ENVIRONMENT,
    "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
    # The usual filter refuses mlock and bpf, which services need.
    "SYSTEMD_SECCOMP": "0",
}
# systemd-nspawn 252 keeps the mounts that it saw, at a place that nobody can unmount. So the host
# gets a mount namespace without file systems of others: those of other hosts, and of other tests.
#
# With `--keep-unit` the reboot of a host ends systemd-nspawn with status 133. Only systemd-nspawn
# joins the groups: a group with a process of its own cannot hand controllers down (cgroup v2).
SUPERVISOR = r"""
root=$1 network=$2 groups=$3
shift 3
drop=()
while read -r _ point _; do
    printf -v point '%b' "${point//\\/\\0}"
    case $point in /proc | /proc/* | /sys | /sys/* | /dev | /dev/*) continue ;; esac
    for needed in "$root" "$network" /usr /lib /bin /sbin /etc /var /run /tmp; do
        [[ $needed/ != "${point%/}"/* ]] || continue 2
    done
    drop+=("$point")
done </proc/self/mounts
[ ${#drop[@]} -eq 0 ] || umount --lazy -- "${drop[@]}" 2>/dev/null

stopping=
trap 'stopping=1; kill -TERM "$child" 2>/dev/null' TERM
while [ -z "$stopping" ]; do
    (
        trap - TERM
        while read -r group; do echo "$BASHPID" >"$group/cgroup.procs" || exit 1; done <<<"$groups"
        exec systemd-nspawn "$@"
    ) &
    child=$!
    wait "$child"
    status=$?
    # A signal ends a wait before the child has ended.
    while kill -0 "$child" 2>/dev/null; do wait "$child"; status=$?; done
    [ "$status" = 133 ] || break
done
exit "$status"
"""


def supervisor(
    *, root: Path, machine: str, hostname: str, network: Path, groups: Sequence[Path]
) -> list[str]:
    """Return the command that runs a host until it is switched off."""
    return [
        *("unshare", "--mount", "--propagation", "private"),
        *("bash", "-c", SUPERVISOR, f"rig-{machine}"),
        *(str(root), str(network), "\n".join(map(str, groups))),
        *("--quiet", "--settings=no", f"--directory={root}"),
        *(f"--machine={machine}", f"--hostname={hostname}"),
        *("--boot", "--register=no", "--keep-unit"),
        f"--network-namespace-path={network}",
        *("--capability=all", "--console=read-only", "--resolv-conf=off"),
        *("--timezone=off", "--link-journal=no"),
    ]
