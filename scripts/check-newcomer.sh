#!/bin/bash
# A newcomer's hour: docs/install.md and docs/quickstart.md followed to the letter, by somebody who may use sudo, in a fresh Debian under
# systemd. tests/docs/blocks.py takes the commands out of the pages and holds what is printed against what they say.
#   scripts/check-newcomer.sh [BUILD_DIR]    as root; BUILD_DIR: take its objects into the clone, so that what is there is not compiled again
# BOOT_BASE=FILE.tar is the Debian (default build/boot-base.tar; scripts/boot-test.sh makes it too). The root has this machine's network, to
# install packages, so port 8080 must be free here.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/fresh-root.sh
leave_out() { echo "check-newcomer: $1; left out"; exit 0; }
[ "$(id -u)" = 0 ] || leave_out 'this needs root'
! command -v apt-get >/dev/null || scripts/deps.sh boot </dev/null || true
for tool in systemd-nspawn mmdebstrap nsenter pgrep; do command -v $tool >/dev/null || leave_out "$tool is missing (scripts/deps.sh boot)"; done
cgroups=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
[ -n "$cgroups" ] || leave_out 'no cgroup v2 hierarchy is mounted'
! (exec 3<>/dev/tcp/127.0.0.1/8080) 2>/dev/null || leave_out 'something listens on 127.0.0.1:8080'

seed=${1:-} base=${BOOT_BASE:-build/boot-base.tar} pages='docs/install.md docs/quickstart.md' ns='' leader=''
W=$(mktemp -d /tmp/pantheon-newcomer.XXXXXX) group=$cgroups/pantheon-newcomer-$$
cleanup() {
    if [ -n "$ns" ]; then
        [ -z "$leader" ] || kill -RTMIN+4 "$leader" 2>/dev/null || true
        for _ in $(seq 100); do kill -0 "$ns" 2>/dev/null || break; sleep .1; done
        kill -KILL "$ns" 2>/dev/null || true
        wait "$ns" 2>/dev/null || true
    fi
    umount "$W/root" 2>/dev/null || true
    if mountpoint -q "$W/root"; then echo "$W/root stays mounted; left as it is" >&2; return; fi
    rm -rf --one-file-system "$W"
    find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
}
trap cleanup EXIT
trap 'exit 130' INT TERM

[ -s "$base" ] || scripts/boot-base.sh "$base"
mkdir -p "$W"/{base,up,work,root} "$group"
tar xf "$base" --numeric-owner -C "$W/base"
mount -t overlay overlay -o "lowerdir=$W/base,upperdir=$W/up,workdir=$W/work" "$W/root"
fresh_root_settings "$W/root"
# a clone that the newcomer has made, and the model that the quick start fetches where it is at hand
chroot "$W/root" useradd -m -s /bin/bash newcomer
home=$W/root/home/newcomer
git -c safe.directory='*' clone -q --no-hardlinks . "$home/pantheon"
if ls models/*.gguf >/dev/null 2>&1; then
    mkdir -p "$home/pantheon/models"
    cp models/SmolLM2-135M-Instruct.Q4_1.gguf "$home/pantheon/models/"
fi
if [ -n "$seed" ]; then
    mkdir -p "$home/pantheon/$seed"
    for part in foundry engine config daemon; do cp -R "$seed/$part" "$home/pantheon/$seed/"; done
    cp "$seed/.flags" "$home/pantheon/$seed/"
    find "$home/pantheon/$seed" -type f -exec touch {} +
fi
# shellcheck disable=SC2086  # pages are words
python3 tests/docs/blocks.py write "$home/hour" $pages
chroot "$W/root" chown -R newcomer: /home/newcomer

(
    echo $BASHPID >"$group/cgroup.procs"
    exec env SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 systemd-nspawn -q --register=no --keep-unit --capability=all --drop-capability=CAP_SYS_MODULE \
        --system-call-filter=bpf --resolv-conf=off -M pantheon-newcomer -D "$W/root" --console=pipe -b >"$W/console" 2>&1 </dev/null
) &
ns=$!
inside() { nsenter -t "$leader" -m -u -i -n -p -r -w -- env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 "$@"; }
for _ in $(seq 200); do
    leader=$(pgrep -P "$ns" -x systemd | head -n 1 || true)
    [ -z "$leader" ] || ! inside test -e /run/systemd/private || break
    sleep .05
done
[ -n "$leader" ] || { cat "$W/console"; exit 1; }
inside systemctl is-system-running --wait >/dev/null 2>&1 || true # "degraded" will do

# sudo is what a newcomer has and the base has not; it keeps what says where packages come from
inside sh -c 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends sudo git >/dev/null'
printf 'newcomer ALL=(ALL) NOPASSWD: ALL\nDefaults env_keep += "http_proxy https_proxy no_proxy DEBIAN_FRONTEND"\n' >"$W/root/etc/sudoers.d/newcomer"
chmod 440 "$W/root/etc/sudoers.d/newcomer"
# shellcheck disable=SC2046  # words without blanks
inside setpriv --reuid=newcomer --regid=newcomer --init-groups env HOME=/home/newcomer USER=newcomer DEBIAN_FRONTEND=noninteractive $(fresh_root_env) \
    bash -c 'cd ~/pantheon && ~/hour/run' || true
# shellcheck disable=SC2086
python3 tests/docs/blocks.py compare "$home/hour" $pages || { inside journalctl -u pantheond -n 40 --no-pager -o cat || true; exit 1; }
