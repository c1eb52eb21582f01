#!/usr/bin/env bash
# down.sh [DIR] [--purge]: stop the cluster that up.sh started in DIR; --purge removes the folder too.
# DIR is $ETTSWEEP_DEVCLUSTER, or /tmp/ettsweep-devcluster, if not given.
set -euo pipefail
purge=
[ "${*: -1}" != --purge ] || { purge=yes; set -- "${@:1:$#-1}"; }
D=${1:-${ETTSWEEP_DEVCLUSTER:-/tmp/ettsweep-devcluster}}
[ -f "$D/etc/slurm.conf" ] || { echo "down.sh: no cluster in $D; nothing to stop" >&2; exit 0; }
D=$(cd "$D" && pwd -P)
here=$(dirname "$(readlink -f "$0")")
. "$here/lib.sh"

for node in $(sed -n 's/^NodeName=\([^ ]*\) .*/\1/p' "$SLURM_CONF"); do "$here/node.sh" "$D" kill "$node"; done
for daemon in slurmctld slurmdbd mariadbd munged; do "$here/ctl.sh" "$D" stop "$daemon"; done

# mounts below our own, innermost first, then our own
awk -v d="$D/disks" '$2 == d || index($2, d "/") == 1 {print $2}' /proc/mounts | sort -r |
  while read -r mounted; do umount -l "$mounted"; done

name_nodes
[ -z "$purge" ] || rm -rf --one-file-system "$D"
say "the SLURM cluster in $D is stopped"
