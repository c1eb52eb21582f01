#!/usr/bin/env bash
# ctl.sh DIR stop|start|restart|kill|freeze|thaw|running DAEMON: one daemon of the cluster in DIR; state is kept.
#   DAEMON   slurmctld (the controller), slurmdbd (accounting), mariadbd or munged
#   stop     end it in good order, and wait until it is gone
#   kill     SIGKILL, as when its machine loses power
#   start    start it if it does not run, and wait until it answers
#   freeze   SIGSTOP: it takes connections, and answers none, as when it is overloaded
#   thaw     undo that
#   running  exit 0 if it runs
set -euo pipefail
[ $# -eq 3 ] && [ -f "$1/etc/slurm.conf" ] || { sed -n '2,9s/^# //p' "$0" >&2; exit 2; }
D=$(cd "$1" && pwd -P)
what=$2 daemon=$3
. "$(dirname "$(readlink -f "$0")")/lib.sh"

signal() { # signal NAME: to the daemon, if it runs
  pid=$(cat "$D/run/$daemon.pid" 2>/dev/null) || true
  ! alive "$daemon" || kill "-$1" "$pid" 2>/dev/null || true
}

ended() { [ -z "$(tr -d '\0' 2>/dev/null <"/proc/$pid/cmdline")" ]; } # a zombie has ended too

end() { # end SIGNAL
  alive "$daemon" || return 0
  signal "$1"
  kill -CONT "$pid" 2>/dev/null || true # a frozen one would not end
  wait_for "the end of $daemon" ended
  rm -f "$D/run/$daemon.pid"
}

start() {
  if ! alive "$daemon"; then
    case $daemon in
    munged)
      munged --key-file="$D/munge/munge.key" --socket="$D/run/munge.sock" --pid-file="$D/run/munged.pid" \
        --log-file="$D/log/munged.log" --seed-file="$D/munge/seed" </dev/null >>"$D/log/munged.out" 2>&1 9>&-
      ;;
    mariadbd) spawn "$D/log/mariadbd.log" mariadbd --defaults-file="$D/etc/mariadb.cnf" ;;
    slurmdbd) spawn "$D/log/slurmdbd.out" slurmdbd -D ;;
    slurmctld) spawn "$D/log/slurmctld.out" slurmctld -D -i ;;
    esac
  fi
  wait_for "$daemon" answers "$daemon"
}

case $daemon in
munged | mariadbd | slurmdbd | slurmctld) ;;
*) die "no daemon '$daemon': slurmctld, slurmdbd, mariadbd or munged" ;;
esac
case $what in
stop) end TERM ;;
kill) end KILL ;;
start) start ;;
restart) end TERM; start ;;
freeze) signal STOP ;;
thaw) signal CONT ;;
running) alive "$daemon" ;;
*) die "cannot '$what': stop, start, restart, kill, freeze, thaw or running" ;;
esac
