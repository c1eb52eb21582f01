# lib.sh: what the scripts beside it share; they set $D, the cluster's folder, before they source it.

export SLURM_CONF=$D/etc/slurm.conf PATH=$PATH:/usr/sbin:/sbin
ME=$(basename "$0")

say() { echo "$ME: $*" >&2; }
die() { say "$*"; exit 2; }

# alive DAEMON: it runs, and it is this cluster's
alive() {
  local pid
  pid=$(cat "$D/run/$1.pid" 2>/dev/null) && [ -n "$pid" ] || return 1
  tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -q "$1" &&
    cat "/proc/$pid/cmdline" "/proc/$pid/environ" 2>/dev/null | tr '\0' '\n' | grep -qF "$D/"
}

# answers DAEMON: it does its work
answers() {
  case $1 in
  munged) munge -n --socket="$D/run/munge.sock" ;;
  mariadbd) mariadb --no-defaults --user=root --socket="$D/run/mariadb.sock" --execute 'SELECT 1' ;;
  slurmdbd) sacctmgr -nP show cluster ;;
  slurmctld) scontrol ping | grep -q ' is UP' ;;
  esac >/dev/null 2>&1
}

# wait_for WHAT COMMAND...: try the command until it succeeds, for a minute
wait_for() {
  local what=$1 end=$((SECONDS + 60))
  shift
  until "$@"; do
    [ $SECONDS -lt $end ] || die "waited a minute in vain for $what; its log is in $D/log"
    sleep 0.05
  done
}

# spawn LOG COMMAND...: start a daemon in a session of its own, without our input and output
spawn() {
  local log=$1
  shift
  setsid "$@" </dev/null >>"$log" 2>&1 9>&- &
}

# port_taken PORT: something on this machine listens there
port_taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# name_nodes [LINE]: put our line into /etc/hosts, or take it out; several clusters may do so at once, and whoever looks
# a name up meanwhile finds all others: the file is replaced, or written in place where it is mounted
name_nodes() {
  local tag="# ettsweep-devcluster $D" new=/etc/.hosts.ettsweep
  (
    flock 8
    { grep -v " $tag\$" /etc/hosts || true; printf '%s' "${1:+$1 $tag$'\n'}"; } >"$new"
    chmod --reference=/etc/hosts "$new"
    mv -f "$new" /etc/hosts 2>/dev/null || { cat "$new" >/etc/hosts && rm "$new"; }
  ) 8</etc
}
