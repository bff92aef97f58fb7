#!/bin/sh
# Installs what the build, the tests and the demo need on Debian (and its kin), and nothing when it is all there.
#   scripts/deps.sh build|check        asks first on a terminal; as root, or with sudo
set -eu
build='gcc make pkg-config libc6-dev libyaml-dev libjansson-dev libsystemd-dev libcurl4-openssl-dev python3 python3-venv ca-certificates'
check="$build libcmocka-dev libsimde-dev binutils"
case ${1:-build} in
build) want=$build ;;
check) want=$check ;;
*) echo "usage: $0 build|check" >&2; exit 64 ;;
esac

if ! command -v dpkg-query >/dev/null 2>&1; then
    command -v cc >/dev/null 2>&1 && command -v pkg-config >/dev/null 2>&1 &&
        pkg-config --exists yaml-0.1 jansson libsystemd libcurl && exit 0
    echo "This is no Debian: install a C compiler, make, pkg-config and the development files of libyaml, jansson," >&2
    echo "libsystemd and libcurl (for the tests also cmocka, simde and python3 with venv), then run make again." >&2
    exit 1
fi
missing=
for p in $want; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null || true)" = installed ] || missing="$missing $p"
done
# an interpreter that is there without its Debian package will do
if python3 -c 'import venv, ensurepip' 2>/dev/null; then
    missing=$(printf '%s' "$missing" | sed 's/ python3-venv//; s/ python3$//; s/ python3 / /')
fi
[ -n "${missing# }" ] || exit 0

sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
if [ -n "$sudo" ] && ! command -v sudo >/dev/null 2>&1; then
    echo "Missing:$missing" >&2
    echo "Install them as root, then run make again:  apt-get install --no-install-recommends$missing" >&2
    exit 1
fi
if [ -t 0 ] && [ -t 1 ]; then
    printf 'The build needs these packages:%s\nInstall them with apt-get? [Y/n] ' "$missing"
    read -r answer
    case $answer in '' | y | Y | yes | Yes) ;; *) echo 'Nothing installed.' >&2; exit 1 ;; esac
else
    echo "Installing:$missing"
fi
$sudo apt-get update -qq
# shellcheck disable=SC2086  # a list of words
DEBIAN_FRONTEND=noninteractive $sudo ${sudo:+env DEBIAN_FRONTEND=noninteractive} apt-get install -y -qq --no-install-recommends $missing >/dev/null
