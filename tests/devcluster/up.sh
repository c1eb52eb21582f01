#!/usr/bin/env bash
# up.sh [DIR]: start, or complete, a SLURM cluster on this machine alone, for tests and development.
#
# DIR is $ETTSWEEP_DEVCLUSTER, or /tmp/ettsweep-devcluster, if not given; all of the cluster lives there, on the loopback
# interface, and `. DIR/env.sh` points SLURM's commands at it. Needs root and Debian's packages, no systemd. What runs is
# left alone, what does not is started, state is kept; down.sh stops it, node.sh and ctl.sh break it on purpose.
#
#   nodes       n1 to n3, with 4 CPUs, 8000 MB and 2 GPUs (there is nothing behind them) each
#   partitions  main (the default); high, which preempts low and nograce, as main does; low (5 s of grace before a job
#               is requeued) and nograce (none); short (at most 5 minutes, 1 if not given)
#
# Knobs, from the environment:
#   ETTSWEEP_DEVCLUSTER_PORT  first of some 40 ports, 26800; kept in DIR
#   PREEMPT_SIGNAL            1: a preempted job gets the signal of its --signal first; 0: it does not
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin # the daemons are there
NODES=3
D=${1:-${ETTSWEEP_DEVCLUSTER:-/tmp/ettsweep-devcluster}}
here=$(dirname "$(readlink -f "$0")")

missing=
for program in munged mariadbd mariadb mariadb-install-db slurmdbd slurmctld slurmd srun sacct; do
  command -v $program >/dev/null || missing+=" $program"
done
[ -z "$missing" ] || { echo "up.sh: not found:$missing; on Debian or Ubuntu:
    apt-get install --no-install-recommends $(cat "$here/packages.txt")" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "up.sh: SLURM's daemons need root; become root, or work in a container" >&2; exit 2; }

umask 022
mkdir -p "$D"
D=$(cd "$D" && pwd -P)
. "$here/lib.sh"
[ ${#D} -le 70 ] || die "$D is ${#D} characters long, at most 70 work: a Unix socket's path ends at 108. Choose another:
    ETTSWEEP_DEVCLUSTER=/tmp/short $0"
[[ $D != *[[:space:]]* ]] || die "$D: SLURM's configuration cannot name a path with a space"
PORT=${ETTSWEEP_DEVCLUSTER_PORT:-$(cat "$D/etc/port" 2>/dev/null || echo 26800)}
[[ $PORT =~ ^[0-9]+$ ]] && [ "$PORT" -ge 1024 ] && [ "$PORT" -le 65000 ] ||
  die "ETTSWEEP_DEVCLUSTER_PORT=$PORT is not a number from 1024 to 65000"
[ "$PORT" = "$(cat "$D/etc/port" 2>/dev/null || echo "$PORT")" ] || ! alive munged ||
  die "the cluster in $D runs at port $(cat "$D/etc/port"); stop it before it moves to $PORT: $here/down.sh $D"
DB_PORT=$((PORT + 6)) CTLD_PORT=$((PORT + 17)) DBD_PORT=$((PORT + 19)) NODE_PORT=$((PORT + 20))
HOST=$(hostname -s)
mkdir -p "$D"/{etc,run,log,munge,state,spool,dev,disks}
chmod 700 "$D/munge" "$D/state"
echo "$PORT" >"$D/etc/port"

exec 9>"$D/run/up.lock" # two at once would start everything twice; spawn closes it for the daemons
flock 9

# need_port PORT DAEMON
need_port() {
  ! port_taken "$1" || die "port $1, for $2, is taken by another program (another cluster?). Choose other ports:
    ETTSWEEP_DEVCLUSTER_PORT=27800 $0 $D"
}

# --- names: those of the nodes must resolve (torch.distributed's MASTER_ADDR is one of them)
name_nodes "127.0.0.1 $(seq -f 'n%g' -s ' ' $NODES)"

# --- disks: what is mounted below this folder later, the nodes see too
if ! grep -qF " $D/disks " /proc/mounts; then
  { mount --bind "$D/disks" "$D/disks" && mount --make-shared "$D/disks"; } 2>/dev/null ||
    say "mounting is not allowed here: no disks for tests, nodes without mounts and host names of their own"
fi

# --- configuration; the daemons read it when they start
[ -s "$D/munge/munge.key" ] || (umask 077; head -c 128 /dev/urandom >"$D/munge/munge.key")
[ -s "$D/etc/db.password" ] || (umask 077; head -c 18 /dev/urandom | base64 | tr -d '/+=' >"$D/etc/db.password")
(umask 077; cat >"$D/etc/init.sql" <<END
CREATE DATABASE IF NOT EXISTS slurm_acct_db;
CREATE USER IF NOT EXISTS 'slurm'@'127.0.0.1' IDENTIFIED BY '$(cat "$D/etc/db.password")';
GRANT ALL ON slurm_acct_db.* TO 'slurm'@'127.0.0.1';
END
)
cat >"$D/etc/mariadb.cnf" <<END
[mariadbd]
user=root
datadir=$D/db
socket=$D/run/mariadb.sock
pid-file=$D/run/mariadbd.pid
bind-address=127.0.0.1
port=$DB_PORT
skip-name-resolve
skip-log-bin
init-file=$D/etc/init.sql
innodb-buffer-pool-size=64M
innodb-flush-log-at-trx-commit=0
innodb-lock-wait-timeout=900
END
(umask 077; cat >"$D/etc/slurmdbd.conf" <<END
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=$DBD_PORT
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$D/run/munge.sock
CommunicationParameters=NoInAddrAny
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$DB_PORT
StorageUser=slurm
StoragePass=$(cat "$D/etc/db.password")
StorageLoc=slurm_acct_db
CommitDelay=1
PidFile=$D/run/slurmdbd.pid
LogFile=$D/log/slurmdbd.log
END
)
echo 'CgroupPlugin=cgroup/v1' >"$D/etc/cgroup.conf"
for gpu in 0 1; do
  [ -e "$D/dev/nvidia$gpu" ] || mknod "$D/dev/nvidia$gpu" c 1 3 2>/dev/null || : >"$D/dev/nvidia$gpu"
done
echo "NodeName=n[1-$NODES] Name=gpu File=$D/dev/nvidia[0-1]" >"$D/etc/gres.conf"
controller=
[ "${PREEMPT_SIGNAL:-1}" = 0 ] || controller=SlurmctldParameters=preempt_send_user_signal
cat >"$D/etc/slurm.conf.new" <<END
ClusterName=devcluster
SlurmctldHost=$HOST(127.0.0.1)
SlurmctldPort=$CTLD_PORT
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# cred_expire is also how long a requeued job waits before it may start again (120 s if not said)
AuthInfo=socket=$D/run/munge.sock,cred_expire=5
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation=$D/state
SlurmdSpoolDir=$D/spool/%n
SlurmctldPidFile=$D/run/slurmctld.pid
SlurmdPidFile=$D/run/slurmd-%n.pid
SlurmctldLogFile=$D/log/slurmctld.log
SlurmdLogFile=$D/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
# a node may claim more CPUs and memory than the machine has
SlurmdParameters=config_overrides
$controller
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0,sched_min_interval=100000
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=256
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
# a dead node is noticed after some 25 s; with less patience, SLURM gives up nodes of a busy machine that are slow to
# answer when it starts a job there, and starts the job anew
SlurmdTimeout=10
MessageTimeout=10
TCPTimeout=2
SlurmctldTimeout=10
KillWait=5
InactiveLimit=0
MinJobAge=300
CompleteWait=0
MaxArraySize=1001
MaxJobCount=50000
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$DBD_PORT
# sacct reads from here, not from AuthInfo, where munge listens
AccountingStoragePass=$D/run/munge.sock
AccountingStorageTRES=gres/gpu
JobCompType=jobcomp/none
MailProg=/bin/true
$(for ((i = 1; i <= NODES; i++)); do
  echo "NodeName=n$i NodeHostname=$HOST NodeAddr=127.0.0.1 Port=$((NODE_PORT + i)) CPUs=4 RealMemory=8000 Gres=gpu:2 State=UNKNOWN"
done)
PartitionName=main Nodes=ALL Default=YES PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP
PartitionName=high Nodes=ALL PriorityTier=100 PreemptMode=OFF MaxTime=INFINITE State=UP
PartitionName=low Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=5 MaxTime=INFINITE State=UP
PartitionName=nograce Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=0 MaxTime=INFINITE State=UP
PartitionName=short Nodes=ALL PriorityTier=10 PreemptMode=OFF DefaultTime=1 MaxTime=5 State=UP
END
changed=
cmp -s "$D/etc/slurm.conf.new" "$D/etc/slurm.conf" || changed=yes
mv "$D/etc/slurm.conf.new" "$D/etc/slurm.conf"
echo "export SLURM_CONF=$D/etc/slurm.conf" >"$D/env.sh"

# --- daemons, each of which needs the ones before it
if [ ! -e "$D/db/.installed" ]; then
  rm -rf "$D/db"
  mkdir -m 700 "$D/db"
  mariadb-install-db --no-defaults --user=root --datadir="$D/db" --skip-test-db --skip-name-resolve \
    --innodb-flush-log-at-trx-commit=0 >"$D/log/mariadb-install.log" 2>&1 ||
    die "mariadb-install-db failed; see $D/log/mariadb-install.log"
  touch "$D/db/.installed"
fi
fresh=
"$here/ctl.sh" "$D" start munged
alive mariadbd || need_port $DB_PORT mariadbd
"$here/ctl.sh" "$D" start mariadbd
alive slurmdbd || need_port $DBD_PORT slurmdbd
"$here/ctl.sh" "$D" start slurmdbd
[ -n "$(sacctmgr -nP show cluster devcluster)" ] ||
  sacctmgr -i add cluster devcluster >>"$D/log/sacctmgr.log" 2>&1
if ! alive slurmctld; then
  need_port $CTLD_PORT slurmctld
  fresh=yes
elif [ -n "$changed" ]; then
  say "the configuration has changed: slurmctld starts again"
  "$here/ctl.sh" "$D" stop slurmctld
fi
"$here/ctl.sh" "$D" start slurmctld
for ((i = 1; i <= NODES; i++)); do
  "$here/node.sh" "$D" pid n$i >/dev/null || need_port $((NODE_PORT + i)) "node n$i"
  "$here/node.sh" "$D" start n$i
done
nodes_up() { [ "$(sinfo -h -N -p main -t idle,mixed,allocated,completing -o %N | sort -u | wc -l)" = $NODES ]; }
wait_for "$NODES nodes" nodes_up

# --- one job from end to end: accounting lags by seconds after a start
if [ -n "$fresh" ]; then
  job=$(sbatch --parsable --job-name up-probe --output /dev/null --chdir / --wrap true)
  recorded() { [ "$(sacct -X -n -P -j "$job" -o State 2>/dev/null)" = COMPLETED ]; }
  wait_for "job $job, in sacct" recorded
fi
say "a SLURM cluster of $NODES nodes is up; to use it:  . $D/env.sh"
