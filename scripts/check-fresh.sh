#!/bin/bash
# Proves that a bare Debian 12 with git and make is enough: a fresh root, a fresh clone, `make demo ONCE=1`, `make check`.
#   scripts/check-fresh.sh [DIR]      as root; needs mmdebstrap; DIR (default: a temporary folder) keeps the base root for reuse
set -euo pipefail
[ "$(id -u)" = 0 ] || { echo 'This needs root: it makes a Debian root and changes into it.' >&2; exit 1; }
command -v mmdebstrap >/dev/null || { echo 'Install mmdebstrap first.' >&2; exit 1; }
top=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=scripts/fresh-root.sh
. "$top/scripts/fresh-root.sh"
dir=${1:-$(mktemp -d)}
mkdir -p "$dir"
base=$dir/base root=$dir/root

cleanup() {
    for m in proc dev sys; do
        ! mountpoint -q "$root/$m" || umount -R -l "$root/$m" || { echo "$root/$m stays mounted; left as it is" >&2; return; }
    done
    rm -rf --one-file-system "$root" # never into a mount that was missed
    [ "$dir" = "${keep:-}" ] || rm -rf "$base"
}
keep=${1:-}
trap cleanup EXIT
trap 'exit 130' INT TERM

[ -d "$base" ] || mmdebstrap --quiet --variant=minbase --include=git,make,ca-certificates bookworm "$base"
rm -rf --one-file-system "$root"
cp -a "$base" "$root"
fresh_root_settings "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --make-rslave "$root/dev"
mount -t sysfs sys "$root/sys"
git clone -q --no-hardlinks "$top" "$root/root/pantheon"

inside() {
    # shellcheck disable=SC2046  # words without spaces
    env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 $(fresh_root_env) \
        chroot "$root" sh -ec "cd ~/pantheon && $1"
}
for command in 'make demo ONCE=1' 'make check'; do
    echo "=== in a fresh Debian root: $command"
    inside "$command"
    echo "=== $command: exit 0"
done
