#!/usr/bin/env bash
# node.sh DIR start|kill|freeze|thaw|readonly|writable|pid NODE: one node, n1 to n3, of the cluster in DIR.
#   start   start its slurmd if it does not run
#   kill    its machine loses power: slurmd, its slurmstepds and all processes of jobs get SIGKILL at once
#   freeze  SIGSTOP slurmd alone: the controller loses the node while its jobs run on, as when a network fails
#   thaw    undo that
#   readonly  its disk fails: slurmd cannot write down what a job is to do, and SLURM requeues the job, held
#   writable  undo that
#   pid     print slurmd's process id; exit 1 if it does not run
# Where the system allows, a node has its own host name, process ids and mounts (it sees mounts made under DIR/disks).
set -euo pipefail
[ $# -eq 3 ] && [ -f "$1/etc/slurm.conf" ] || { sed -n '2,10s/^# //p' "$0" >&2; exit 2; }
D=$(cd "$1" && pwd -P)
what=$2 node=$3
. "$(dirname "$(readlink -f "$0")")/lib.sh"
grep -q "^NodeName=$node " "$SLURM_CONF" || die "no node '$node' in $SLURM_CONF"

# All processes of the node: they carry its name and our SLURM_CONF in their environment. A slurmstepd writes its title
# over the front of its environment: it is known by the node's log that it holds open.
processes() {
  local file pid
  { grep -lsxzF "SLURM_CONF=$SLURM_CONF" /proc/[0-9]*/environ || true; } |
    { xargs -r grep -lsxzF "SLURMD_NODENAME=$node" || true; } | cut -d/ -f3 | grep -vx "$$" || true
  for file in $(grep -ls '^slurmstepd' /proc/[0-9]*/comm); do
    pid=${file#/proc/} pid=${pid%/comm}
    ! readlink "/proc/$pid/fd/"* 2>/dev/null | grep -qxF "$D/log/slurmd-$node.log" || echo "$pid"
  done
}

title() { tr '\0' ' ' 2>/dev/null <"/proc/$1/cmdline" || true; }

slurmd_pid() {
  local pid
  for pid in $(processes); do
    [[ $(title "$pid") != "slurmd -D -N $node "* ]] || { echo "$pid"; return 0; }
  done
  return 1
}

can_isolate() { unshare --pid --uts --mount --propagation slave --fork --mount-proc true 2>/dev/null; }

signal() { # signal NAME PID...
  local name=$1 pid
  shift
  for pid in "$@"; do kill "-$name" "$pid" 2>/dev/null || true; done
}

inside() { nsenter --target "$(slurmd_pid)" --mount "$@"; } # inside COMMAND...: with the node's mounts

start() {
  ! slurmd_pid >/dev/null || return 0
  mkdir -p "$D/spool/$node"
  rm -f "$D/run/slurmd-$node.pid"
  ulimit -c 0 # a slurmstepd that cannot write aborts
  # This bash is the node's first process: it reaps orphaned slurmstepds, which slurmd as process 1 does not. It
  # outlives slurmd, so that a crash of slurmd alone does not take the jobs with it.
  local init='hostname "$1" 2>/dev/null || true; slurmd -D -N "$1" & wait $!; exec sleep infinity' isolated=()
  if can_isolate; then
    isolated=(unshare --pid --uts --mount --propagation slave --fork --mount-proc --kill-child --)
  else
    init=${init#*; } # the host name would be the machine's own
  fi
  SLURMD_NODENAME=$node spawn "$D/log/slurmd-$node.out" "${isolated[@]}" bash -c "$init" init "$node"
}

case $what in
start) start ;;
kill)
  # First everything is stopped, the daemons before all else: a slurmstepd that outlives its task by a moment would
  # report the task dead, and the job would be FAILED, not NODE_FAIL.
  for pid in $(processes); do
    case $(title "$pid") in slurmd* | slurmstepd*) signal STOP "$pid" ;; esac
  done
  signal STOP $(processes)
  signal KILL $(processes)
  ;;
freeze) signal STOP $(slurmd_pid) ;;
thaw) signal CONT $(slurmd_pid) ;;
readonly) inside mount -t tmpfs -o ro none "$D/spool/$node" ;;
writable) ! slurmd_pid >/dev/null || ! inside mountpoint -q "$D/spool/$node" || inside umount "$D/spool/$node" ;;
pid) slurmd_pid ;;
*) die "cannot '$what': start, kill, freeze, thaw, readonly, writable or pid" ;;
esac
