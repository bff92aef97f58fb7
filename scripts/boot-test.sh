#!/bin/bash
# The daemon's life under systemd as PID 1: what `make install` installs, in a fresh Debian booted by systemd-nspawn (own pid, mount, net,
# ipc, uts and cgroup namespaces, an overlay that is thrown away). Needs root, a cgroup v2 hierarchy somewhere, and the packages
# systemd-container and mmdebstrap.
#   scripts/boot-test.sh BUILD_DIR        BOOT_BASE=FILE.tar keeps and reuses the Debian; default build/boot-base.tar
set -uo pipefail
cd "$(dirname "$0")/.."
[ $# = 1 ] || { echo "usage: $0 BUILD_DIR" >&2; exit 64; }
B=$1 BASE=${BOOT_BASE:-build/boot-base.tar} U=pantheond.service
[ "$(id -u)" = 0 ] || { echo 'check-boot: must be root' >&2; exit 1; }
for tool in systemd-nspawn mmdebstrap nsenter pgrep; do
    command -v $tool >/dev/null || { echo "check-boot: $tool is missing (apt-get install systemd-container mmdebstrap util-linux procps)" >&2; exit 1; }
done
CGROOT=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
[ -n "$CGROOT" ] || { echo 'check-boot: no cgroup v2 hierarchy is mounted' >&2; exit 1; }

if [ ! -s "$BASE" ]; then
    mkdir -p "$(dirname "$BASE")"
    mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv,dbus,libjansson4,libyaml-0-2,libsystemd0,libcurl4,libssl3,curl,procps \
        "${BOOT_SUITE:-bookworm}" "$BASE.new.tar" && mv "$BASE.new.tar" "$BASE" || exit 1
fi

W=$(mktemp -d /tmp/pantheon-boot.XXXXXX) CG=$CGROOT/pantheon-boot-$$ NS='' LEADER='' PASS=0 FAIL=0 T0=$(date +%s%N)
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
cleanup() {
    halt
    umount "$W/tree" 2>/dev/null
    rm -rf "$W"
    find "$CG" -depth -type d -exec rmdir {} + 2>/dev/null
}
trap cleanup EXIT
mkdir -p "$W"/{base,up,wk,tree} "$CG"
tar xf "$BASE" --numeric-owner -C "$W/base" || exit 1
mount -t overlay overlay -o "lowerdir=$W/base,upperdir=$W/up,workdir=$W/wk" "$W/tree" || exit 1

# --- what make install installs, models, a manifest
make --no-print-directory install DESTDIR="$W/tree" prefix=/usr sysconfdir=/etc >"$W/install.log" 2>&1 || { tail "$W/install.log"; exit 1; }
M=$W/tree/var/lib/pantheon/models
mkdir -p "$M" "$W/tree/etc/systemd/system/multi-user.target.wants" "$W/tree/etc/systemd/system/$U.d"
"$B/tests/gen/script" "$M/talk.gguf" --text 'so it goes on and on' --endless --pace-us 20000 --weights 1MiB || exit 1
ln -s /usr/lib/systemd/system/$U "$W/tree/etc/systemd/system/multi-user.target.wants/$U"
printf '[Service]\nWatchdogSec=3\n' >"$W/tree/etc/systemd/system/$U.d/test.conf"
manifest() { # manifest EXTRA-LINES...: the models beside the first
    printf '%s\n' 'version: 1' 'host: { ram_reserve: 16MiB }' 'dies:' \
        '  - { name: s0, kind: sim, memory: 100MB, script: "upload 1 takes 2s, get_rows 400 takes 60s" }' \
        '  - { name: s1, kind: sim, memory: 100MB }' 'models:' '  - { name: talk, source: { path: /var/lib/pantheon/models/talk.gguf }, dies: [ s0 ] }' "$@"
}
SECOND='  - { name: second, source: { path: /var/lib/pantheon/models/talk.gguf }, dies: [ s1 ] }'
write() { manifest "$@" >"$W/tree/etc/pantheon/models.yaml"; }
write

boot() {
    local t
    t=$(date +%s%N)
    (
        echo $BASHPID >"$CG/cgroup.procs"
        exec env SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 systemd-nspawn -q --register=no --keep-unit --private-network --capability=all \
            --drop-capability=CAP_SYS_MODULE --system-call-filter=bpf -M pantheon-boot -D "$W/tree" --console=pipe -b >"$W/console" 2>&1 </dev/null
    ) &
    NS=$!
    for _ in $(seq 200); do
        LEADER=$(pgrep -P "$NS" -x systemd | head -1)
        [ -n "$LEADER" ] && ctr ls /run/systemd/private >/dev/null 2>&1 && break
        sleep .05
    done
    echo "# systemd answers after $(ms "$t") ms"
}
ctr() { nsenter -t "$LEADER" -m -u -i -n -p -r -w -- env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C HOME=/root "$@"; }
prop() { ctr systemctl show -P "$1" $U; }
is() { [ "$(prop "$1")" = "$2" ]; }
get() { ctr curl -s -m 5 "http://127.0.0.1:8080$1"; }
serves() { get /v1/models | grep -q "\"id\":\"$1\".*\"status\":\"ready\""; }
answers() { ctr curl -s -m 10 http://127.0.0.1:8080/v1/completions -d "{\"model\":\"$1\",\"prompt\":\"so it\",\"max_tokens\":2}" | grep -q '"choices"'; }
says() { ctr journalctl -u $U --no-pager -o cat | grep -q -- "$1"; }
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

# --- start: active only after READY=1
boot
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

# --- reload, good and bad
pid=$(prop MainPID)
write "$SECOND"
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
pid=$(prop MainPID)
ctr kill -KILL "$pid"
wait_for 'kill -9: restarted and active' 15000 fresh "$pid"
check 'both models serve again' eval 'serves talk && serves second'
pid=$(prop MainPID)
ctr curl -s -m 30 http://127.0.0.1:8080/v1/completions -d '{"model":"talk","prompt":"so it","max_tokens":600,"stream":true}' >/dev/null &
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
mkdir -p "$W/tree/etc/systemd/system/pantheond.socket.d"
printf '[Socket]\nListenStream=127.0.0.1:8081\nListenStream=/run/pantheon-admin.sock\n' >"$W/tree/etc/systemd/system/pantheond.socket.d/test.conf"
check 'systemd-analyze verify, of the socket unit' ctr systemd-analyze verify --man=no pantheond.socket
ctr systemctl daemon-reload
check 'the socket unit starts' ctr systemctl start pantheond.socket
check 'nothing runs yet' is ActiveState inactive
check 'a request starts the service, and is answered' eval 'ctr curl -s -m 20 http://127.0.0.1:8080/health | grep -q models'
check 'so does the other address' eval 'ctr curl -s -m 5 http://127.0.0.1:8081/health | grep -q models'
check 'a passed socket is not bound twice' eval 'says "address=127.0.0.1:8080 passed_as=" && ! ctr journalctl -u $U -n 30 -o cat | grep -q "in use"'
wait_for 'active' 8000 is ActiveState active
check 'administration over a passed socket' ctr pantheon-reconcile --socket /run/pantheon-admin.sock --status
ctr systemctl restart --no-block $U
sleep .3
check 'a request in the middle of a restart waits and is answered' eval 'ctr curl -s -m 20 http://127.0.0.1:8081/health | grep -q models'
wait_for 'active again' 8000 is ActiveState active
ctr systemctl stop pantheond.socket $U
ctr systemctl start $U

# --- a broken manifest after a reboot: the last good one serves
halt
write "$SECOND" '    ctx_kap: 1'
boot
wait_for 'broken file at boot: active' 15000 is ActiveState active
check 'the last good manifest serves' eval 'serves talk && serves second'
check 'and is shouted about' eval 'says "THE MANIFEST IS BAD" && [[ "$(prop StatusText)" == *"MANIFEST BAD"* ]]'
check 'nothing is restarted' is NRestarts 0
ctr systemctl stop $U
rm -f "$W/tree/var/lib/pantheon/last-accepted.yaml"
ctr rm -f /var/lib/pantheon/last-accepted.yaml
ctr systemctl start $U
wait_for 'without one: failed' 3000 is ActiveState failed
sleep 2
check 'with exit status 78, and no restart loop' eval 'is ExecMainStatus 78 && is NRestarts 0'
check 'systemd-analyze verify' ctr systemd-analyze verify --man=no $U

[ $FAIL = 0 ] || ctr journalctl -u $U --no-pager -o cat | tail -80
echo "$PASS passed, $FAIL failed"
[ $FAIL = 0 ]
