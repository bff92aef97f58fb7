#!/bin/bash
# The life of the packages under systemd as PID 1: installed into a fresh Debian that systemd-nspawn boots (own pid, mount, net, ipc, uts and
# cgroup namespaces, an overlay that is thrown away), the .deb first, then the .rpm in a second one. Needs root, a cgroup v2 hierarchy somewhere,
# and the packages of `scripts/deps.sh boot`.
#   scripts/boot-test.sh BUILD_DIR DEB_DIR RPM_DIR      BOOT_BASE=FILE.tar keeps and reuses the Debian; default build/boot-base.tar
set -uo pipefail
cd "$(dirname "$0")/.."
[ $# = 3 ] || { echo "usage: $0 BUILD_DIR DEB_DIR RPM_DIR" >&2; exit 64; }
B=$1 BASE=${BOOT_BASE:-build/boot-base.tar} U=pantheond.service
[ "$(id -u)" = 0 ] || { echo 'check-boot: must be root' >&2; exit 1; }
CGROOT=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
[ -n "$CGROOT" ] || { echo 'check-boot: no cgroup v2 hierarchy is mounted' >&2; exit 1; }
scripts/deps.sh boot || exit 1
shopt -s nullglob
DEB=("$2"/pantheon_*_"$(dpkg --print-architecture)".deb) RPM=("$3"/pantheon-[0-9]*."$(uname -m)".rpm)
[ ${#DEB[@]} = 1 ] && [ ${#RPM[@]} = 1 ] || { echo "check-boot: one pantheon_*.deb in $2 and one pantheon-*.rpm in $3, please" >&2; exit 1; }

[ -s "$BASE" ] || scripts/boot-base.sh "$BASE" || exit 1

W=$(mktemp -d /tmp/pantheon-boot.XXXXXX) CG=$CGROOT/pantheon-boot-$$ NS='' LEADER='' PASS=0 FAIL=0 T0=$(date +%s%N) ROOT=''
ms() { echo $((($(date +%s%N) - ${1:-$T0}) / 1000000)); }
ok() { PASS=$((PASS + 1)); printf 'ok   %6d ms  %s\n' "$(ms)" "$1"; }
no() { FAIL=$((FAIL + 1)); printf 'FAIL %6d ms  %s\n' "$(ms)" "$1"; }
check() { local d=$1; shift; if "$@" >/dev/null 2>&1; then ok "$d"; else no "$d"; fi; }
halt() {
    [ -n "$NS" ] || return 0
    kill -RTMIN+4 "$LEADER" 2>/dev/null
    for _ in $(seq 150); do kill -0 "$NS" 2>/dev/null || break; sleep .1; done
    kill -KILL "$NS" 2>/dev/null
    wait "$NS" 2>/dev/null
    NS=''
}
# A new Debian over the unpacked one, at $ROOT.
fresh_root() {
    mkdir -p "$W/$1"/{up,wk,tree}
    ROOT=$W/$1/tree
    mount -t overlay overlay -o "lowerdir=$W/base,upperdir=$W/$1/up,workdir=$W/$1/wk" "$ROOT" || exit 1
}
cleanup() {
    halt
    umount "$W"/*/tree 2>/dev/null
    rm -rf "$W"
    find "$CG" -depth -type d -exec rmdir {} + 2>/dev/null
}
trap cleanup EXIT
mkdir -p "$W/base" "$CG"
tar xf "$BASE" --numeric-owner -C "$W/base" || exit 1

manifest() { # manifest EXTRA-LINES...: the models beside the first
    printf '%s\n' 'version: 1' 'host: { ram_reserve: 16MiB }' 'dies:' \
        '  - { name: s0, kind: sim, memory: 100MB, script: "upload 1 takes 2s, get_rows 400 takes 60s" }' \
        '  - { name: s1, kind: sim, memory: 100MB }' 'models:' '  - { name: talk, source: { path: /var/lib/pantheon/models/talk.gguf }, dies: [ s0 ] }' "$@"
}
SECOND='  - { name: second, source: { path: /var/lib/pantheon/models/talk.gguf }, dies: [ s1 ] }'
write() { manifest "$@" >"$ROOT/etc/pantheon/models.yaml"; }
models() { "$B/tests/gen/script" "$ROOT/var/lib/pantheon/models/talk.gguf" --text 'so it goes on and on' --endless --pace-us 20000 --weights 1MiB || exit 1; }

boot() {
    local t
    t=$(date +%s%N)
    (
        echo $BASHPID >"$CG/cgroup.procs"
        exec env SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 systemd-nspawn -q --register=no --keep-unit --private-network --capability=all \
            --drop-capability=CAP_SYS_MODULE --system-call-filter=bpf -M pantheon-boot -D "$ROOT" --console=pipe -b >"$W/console" 2>&1 </dev/null
    ) &
    NS=$!
    for _ in $(seq 200); do
        LEADER=$(pgrep -P "$NS" -x systemd | head -1)
        [ -n "$LEADER" ] && ctr ls /run/systemd/private >/dev/null 2>&1 && break
        sleep .05
    done
    ctr systemctl is-system-running --wait >/dev/null 2>&1
    ctr mkdir -p "/run/systemd/system/$U.d"
    printf '[Service]\nWatchdogSec=3\n' | ctr tee "/run/systemd/system/$U.d/test.conf" >/dev/null
    ctr systemctl daemon-reload
    echo "# booted after $(ms "$t") ms"
}
ctr() { nsenter -t "$LEADER" -m -u -i -n -p -r -w -- env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C HOME=/root DEBIAN_FRONTEND=noninteractive "$@"; }
prop() { ctr systemctl show -P "$1" $U; }
is() { [ "$(prop "$1")" = "$2" ]; }
get() { ctr curl -s -m 5 "http://127.0.0.1:8080$1"; }
serves() { get /v1/models | grep -q "\"id\":\"$1\".*\"status\":\"ready\""; }
answers() { ctr curl -s -m 10 http://127.0.0.1:8080/v1/completions -d "{\"model\":\"$1\",\"prompt\":\"so it\",\"max_tokens\":2}" | grep -q '"choices"'; }
# (all of it is read: a grep that leaves early would make the journal's reader fail)
says() { ctr journalctl -u $U --no-pager -o cat | grep -- "$1" >/dev/null; }
wait_for() {
    local d=$1 most=$2 t
    t=$(date +%s%N)
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ "$(ms "$t")" -gt "$most" ] && { no "$d (not within $most ms)"; return 1; }
        sleep .05
    done
    ok "$d (after $(ms "$t") ms)"
}
# one read of both: two would race with a restart
fresh() { local a; a=$(ctr systemctl show -p ActiveState,MainPID --value $U | sort | tr '\n' ' '); [[ $a =~ ^([1-9][0-9]*)\ active\ $ ]] && [ "${BASH_REMATCH[1]}" != "$1" ]; }
never() { ! "$@"; }

# --- install: everything is there, nothing runs
fresh_root deb
cp "${DEB[0]}" "$ROOT/root/pantheon.deb"
# The next version: as this one, but for its number and the manifest that it brings.
dpkg-deb -R "${DEB[0]}" "$W/next" && sed -i 's/^Version: .*/&+next/' "$W/next/DEBIAN/control" && echo '# of the next version' >>"$W/next/etc/pantheon/models.yaml" &&
    dpkg-deb --root-owner-group -Zgzip -z1 -b "$W/next" "$ROOT/root/next.deb" >/dev/null || exit 1
# All files and users, but for what the system keeps for itself: backups of the lists of users, dpkg's and systemd's own state, logs.
inventory() {
    ctr find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /dev -o -path /tmp -o -path /var/log -o -path /var/lib/dpkg -o -path /var/lib/systemd \) -prune -o \
        ! -name '*-' ! -name .pwd.lock ! -path '/root/*' ! -path '/var/cache/*' ! -path '/var/tmp/systemd-private-*' -print | sort
    ctr getent passwd
    ctr getent group
}
boot
inventory >"$W/before"
check 'dpkg -i' ctr dpkg -i /root/pantheon.deb
check 'nothing is enabled' eval '[ "$(ctr systemctl is-enabled $U)" = disabled ] && [ "$(ctr systemctl is-enabled pantheond.socket)" = disabled ]'
check 'nothing runs' is ActiveState inactive
check 'the user is there, and has no shell' eval 'ctr getent passwd pantheon | grep -q "/var/lib/pantheon:/usr/sbin/nologin$"'
check 'so is the folder for models' eval '[ "$(ctr stat -c %U:%G:%a /var/lib/pantheon/models)" = pantheon:pantheon:2775 ]'
check 'man pages, completions, examples' eval 'ctr sh -c "ls /usr/share/man/man8/pantheond.8.gz /usr/share/man/man1/pantheon-cpu.1.gz /usr/share/bash-completion/completions/pantheon /usr/share/doc/pantheon/examples/models.conf"'
check 'the manifest as installed is good' ctr pantheon-reconcile --check
check 'systemd-analyze verify' ctr systemd-analyze verify --man=no $U pantheond.socket
echo "# $(ctr systemd-analyze security --no-pager $U | tail -n 1)"
check 'systemd-analyze security: at most 2.0' ctr systemd-analyze security --no-pager --threshold=20 $U
models
write
check 'enable' ctr systemctl enable $U
check 'start' ctr systemctl start --no-block $U

# --- start: active only after READY=1
wait_for 'activating while the model loads' 5000 is ActiveState activating
wait_for 'STATUS says what is being loaded' 3000 eval '[[ "$(prop StatusText)" == *"Loading talk (1 of 1)"* ]]'
check 'HTTP answers meanwhile' eval 'get /ready | grep -q "first pass"'
wait_for 'active after READY=1' 8000 is ActiveState active
check 'the model serves by then' serves talk
check 'and answers' answers talk
check 'STATUS has the numbers' eval '[[ "$(prop StatusText)" == *"Serving 1 of 1 models; generation 1"* ]]'
check 'the admin socket is 0660' eval '[ "$(ctr stat -c %a /run/pantheon/admin.sock)" = 660 ]'
check 'pantheon-reconcile --status over it' ctr pantheon-reconcile --status
ctr systemctl stop $U
t=$(date +%s%N)
ctr systemctl start $U
check "systemctl start returns after the load ($(ms "$t") ms >= 2000)" test "$(ms "$t")" -ge 2000
check 'active then' is ActiveState active

# --- who it is
check 'it runs as its user' eval '[ "$(ctr ps -o user= -p "$(prop MainPID)" | tr -d " ")" = pantheon ]'
check 'without any capability' eval 'ctr grep -q "^CapBnd:.0000000000000000$" "/proc/$(prop MainPID)/status"'
check 'with no other device than its own' eval '[ "$(prop DevicePolicy)" = closed ]'
check 'a stranger may not administer' never ctr setpriv --reuid nobody --regid nogroup --clear-groups pantheon-reconcile --status
check 'one of the group may' ctr setpriv --reuid nobody --regid nogroup --groups "$(ctr getent group pantheon | cut -d: -f3)" pantheon-reconcile --status

# --- a model below a home directory: hidden, and said to be
ctr mkdir -p /home/u
ctr cp /var/lib/pantheon/models/talk.gguf /home/u/m.gguf
ctr ln -s /home/u/m.gguf /var/lib/pantheon/models/linked.gguf
write '  - { name: homely, source: { path: /home/u/m.gguf }, dies: [ s1 ] }' '  - { name: linked, source: { path: /var/lib/pantheon/models/linked.gguf }, dies: [ s1 ] }'
ctr systemctl reload $U
wait_for 'a model below /home: the error says that ProtectHome hides it' 5000 eval '[ "$(ctr pantheon-reconcile --json --status | grep -o "ProtectHome= of the service hides /home" | wc -l)" -ge 2 ]'
check 'the other model serves' serves talk
write
ctr systemctl reload $U
ctr rm -r /home/u /var/lib/pantheon/models/linked.gguf

# --- edit, plan, reload, good and bad
pid=$(prop MainPID)
write "$SECOND"
ctr pantheon-reconcile --plan >"$W/plan"
check '--plan: a change is pending (2)' test $? = 2
check 'and it is the new model' grep -q '^+ *second' "$W/plan"
check 'systemctl reload of a good file' ctr systemctl reload $U
wait_for 'the new model serves' 5000 serves second
check 'the same process' test "$pid" = "$(prop MainPID)"
write "$SECOND" '    ctx_kap: 1'
check 'systemctl reload of a broken file fails' never ctr systemctl reload $U
check 'the journal has file:line:column' says "/etc/pantheon/models.yaml:9:[0-9]*: error:"
ctr systemctl kill -s HUP $U
wait_for 'SIGHUP with a broken file: STATUS says so' 3000 eval '[[ "$(prop StatusText)" == *"MANIFEST REFUSED"* ]]'
check 'nothing changed' eval 'serves talk && serves second && is ActiveState active && [ "$pid" = "$(prop MainPID)" ]'
write "$SECOND"
check 'reload of the good file again' ctr systemctl reload $U
check 'pantheon-reconcile --plan: in sync' ctr pantheon-reconcile --plan

# --- crash, watchdog
ctr systemctl restart --no-block $U
wait_for 'a load is running' 5000 eval '[[ "$(prop StatusText)" == *"Loading talk"* ]]'
pid=$(prop MainPID)
ctr kill -KILL "$pid"
wait_for 'kill -9 during a load: restarted and active' 15000 fresh "$pid"
pid=$(prop MainPID)
ctr curl -sN -m 30 http://127.0.0.1:8080/v1/completions -d '{"model":"second","prompt":"so it","max_tokens":1000,"stream":true}' >"$W/cut" &
c=$!
wait_for 'a stream is running' 5000 grep -q data: "$W/cut"
ctr kill -KILL "$pid"
wait $c
check 'kill -9 during a stream: it ends, and does not claim to be whole' never grep -q '\[DONE\]' "$W/cut"
wait_for 'restarted and active' 15000 fresh "$pid"
check 'both models serve again' eval 'serves talk && serves second'
pid=$(prop MainPID)
ctr curl -s -m 60 http://127.0.0.1:8080/v1/completions -d '{"model":"talk","prompt":"so it","max_tokens":3500,"stream":true}' >/dev/null &
c=$!
wait_for 'a scheduler stuck in a step: the watchdog restarts' 40000 fresh "$pid"
wait $c
check 'the journal says watchdog' says 'Watchdog timeout'
wait_for 'and it serves' 5000 answers talk

# --- stop drains
ctr curl -sN -m 20 http://127.0.0.1:8080/v1/completions -d '{"model":"talk","prompt":"so it","max_tokens":100,"stream":true}' >"$W/stream" &
c=$!
wait_for 'a stream is running' 5000 grep -q data: "$W/stream"
t=$(date +%s%N)
ctr systemctl stop --no-block $U
wait_for 'deactivating while it drains' 2000 is ActiveState deactivating
check 'a new request is 503 draining' eval 'ctr curl -s -m 2 http://127.0.0.1:8080/v1/models | grep -q draining'
wait $c
check "the open stream is whole ($(grep -c data: "$W/stream") events)" grep -q '\[DONE\]' "$W/stream"
wait_for 'inactive, and a success' 5000 eval 'is ActiveState inactive && is Result success'
ctr systemctl start $U

# --- sockets that systemd opens: the first address is the manifest's own
ctr systemctl stop $U
ctr mkdir -p /run/systemd/system/pantheond.socket.d
printf '[Socket]\nListenStream=127.0.0.1:8081\nListenStream=/run/pantheon-admin.sock\n' | ctr tee /run/systemd/system/pantheond.socket.d/test.conf >/dev/null
ctr systemctl daemon-reload
check 'the socket unit starts' ctr systemctl start pantheond.socket
check 'nothing runs yet' is ActiveState inactive
check 'a request starts the service, and is answered' eval 'ctr curl -s -m 20 http://127.0.0.1:8080/health | grep -q models'
check 'so does the other address' eval 'ctr curl -s -m 5 http://127.0.0.1:8081/health | grep -q models'
check 'a passed socket is not bound twice' eval 'says "address=127.0.0.1:8080 passed_as=" && ! ctr journalctl -u $U -n 30 -o cat | grep -q "address is in use"'
wait_for 'active' 8000 is ActiveState active
check 'administration over a passed socket' ctr pantheon-reconcile --socket /run/pantheon-admin.sock --status
ctr systemctl restart --no-block $U
sleep .3
check 'a request in the middle of a restart waits and is answered' eval 'ctr curl -s -m 20 http://127.0.0.1:8081/health | grep -q models'
wait_for 'active again' 8000 is ActiveState active
ctr systemctl stop pantheond.socket $U
ctr systemctl start $U

# --- an upgrade under a stream: nothing is restarted, the edited manifest stays
pid=$(prop MainPID)
ctr curl -sN -m 60 http://127.0.0.1:8080/v1/completions -d '{"model":"second","prompt":"so it","max_tokens":200,"stream":true}' >"$W/stream" &
c=$!
wait_for 'a stream is running' 5000 grep -q data: "$W/stream"
ctr dpkg --force-confdef --force-confold -i /root/next.deb >"$W/upgrade" 2>&1
check 'upgrade' test $? = 0
check 'the administrator is told' grep -q 'when it suits.*systemctl restart pantheond' "$W/upgrade"
wait $c
check 'the stream did not notice' grep -q '\[DONE\]' "$W/stream"
check 'the same process' eval 'is ActiveState active && [ "$pid" = "$(prop MainPID)" ]'
check 'the edited manifest is as it was' eval 'manifest "$SECOND" | cmp - "$ROOT/etc/pantheon/models.yaml"'
check 'the new one lies beside it' ctr test -e /etc/pantheon/models.yaml.dpkg-dist
check 'still enabled' eval '[ "$(ctr systemctl is-enabled $U)" = enabled ]'

# --- a broken manifest after a reboot: the last good one serves
halt
write "$SECOND" '    ctx_kap: 1'
boot
wait_for 'broken file at boot: active' 15000 is ActiveState active
check 'the last good manifest serves' eval 'serves talk && serves second'
check 'and is shouted about' eval 'says "THE MANIFEST IS BAD" && [[ "$(prop StatusText)" == *"MANIFEST BAD"* ]]'
check 'nothing is restarted' is NRestarts 0
ctr systemctl stop $U
ctr rm -f /var/lib/pantheon/last-accepted.yaml
ctr systemctl start $U
wait_for 'without one: failed' 3000 is ActiveState failed
sleep 2
check 'with exit status 78, and no restart loop' eval 'is ExecMainStatus 78 && is NRestarts 0'

# --- remove, purge
write
ctr systemctl reset-failed $U
ctr systemctl start $U
check 'remove' ctr dpkg -r pantheon
check 'nothing runs' never ctr pgrep -x pantheond
check 'state and manifest are kept' ctr test -e /etc/pantheon/models.yaml -a -e /var/lib/pantheon/models/talk.gguf
check 'purge' ctr dpkg -P pantheon
inventory >"$W/after"
check 'purge leaves nothing' diff "$W/before" "$W/after"
check 'not in systemd either' eval '[ -z "$(ctr sh -c "ls -d /var/lib/systemd/*/pantheon* 2>/dev/null; systemctl --failed --no-legend")" ]'
[ $FAIL = 0 ] || { diff "$W/before" "$W/after"; ctr journalctl -u $U --no-pager -o cat | tail -80; }

# --- the rpm: its files and what its scriptlets do
halt
fresh_root rpm
cp "${RPM[0]}" "$ROOT/root/pantheon.rpm"
boot
check 'rpm -i' ctr rpm -i --nodeps --force-debian /root/pantheon.rpm
check 'nothing is enabled, nothing runs' eval '[ "$(ctr systemctl is-enabled $U)" = disabled ] && is ActiveState inactive'
check 'the user and the folder for models are there' eval '[ "$(ctr stat -c %U:%G:%a /var/lib/pantheon/models)" = pantheon:pantheon:2775 ]'
check 'man pages of all programs' ctr sh -c 'for p in 1/pantheon.1 1/pantheon-cpu.1 1/pantheon-reconcile.1 8/pantheond.8; do test -e /usr/share/man/man$p.gz || exit 1; done'
check 'rpm -V' ctr rpm -V --nodeps pantheon
models
write
ctr systemctl enable $U
check 'start' ctr systemctl start $U
check 'answers' answers talk
pid=$(prop MainPID)
check 'installed again, as an upgrade is' eval 'ctr rpm -U --nodeps --force --force-debian /root/pantheon.rpm >"$W/upgrade" 2>&1'
check 'the administrator is told' grep -q 'when it suits.*systemctl restart pantheond' "$W/upgrade"
check 'the same process' eval 'is ActiveState active && [ "$pid" = "$(prop MainPID)" ]'
check 'the edited manifest is as it was' eval 'manifest | cmp - "$ROOT/etc/pantheon/models.yaml"'
check 'erase' ctr rpm -e --nodeps --force-debian pantheon
check 'nothing runs, nothing is enabled' eval '! ctr pgrep -x pantheond && ! ctr test -e /etc/systemd/system/multi-user.target.wants/$U'
check 'the edited manifest is kept' ctr test -e /etc/pantheon/models.yaml.rpmsave
check 'the files are gone' eval '[ -z "$(ctr find /usr -name "*pantheon*")" ]'

[ $FAIL = 0 ] || ctr journalctl -u $U --no-pager -o cat | tail -40
echo "$PASS passed, $FAIL failed"
[ $FAIL = 0 ]
