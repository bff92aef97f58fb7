#!/bin/sh
# Makes the Debian that boot tests start from, once: systemd, what pantheon's programs link with, and the little that tests ask with; rpm, to try that package too.
#   scripts/boot-base.sh FILE.tar      BOOT_SUITE=bookworm
set -eu
[ $# = 1 ] || { echo "usage: $0 FILE.tar" >&2; exit 64; }
mkdir -p "$(dirname "$1")"
mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv,dbus,libjansson4,libyaml-0-2,libsystemd0,libcurl4,libssl3,curl,procps,rpm \
    "${BOOT_SUITE:-bookworm}" "$1.new.tar"
mv "$1.new.tar" "$1"
