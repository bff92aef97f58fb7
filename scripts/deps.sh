#!/bin/sh
# Installs what the build, the tests and the demo need on Debian (and its kin), and nothing when it is all there.
#   scripts/deps.sh build|check        asks first on a terminal; as root, or with sudo
#   scripts/deps.sh missing            installs nothing: prints which packages of the build are not there, on one line
#   scripts/deps.sh page               a browser for the tests of the daemon's page, which are left out without one
#   scripts/deps.sh package            what makes and checks packages, for any architecture (the cross compiler is `cross`'s)
#   scripts/deps.sh boot               what boots them in a container
#   scripts/deps.sh cross DIR          a compiler and an emulator for 64-bit Arm; its libraries are unpacked into DIR, not installed
set -eu
build='gcc make pkg-config libc6-dev libyaml-dev libjansson-dev libsystemd-dev libcurl4-openssl-dev libssl-dev python3 python3-venv ca-certificates'
check="$build libcmocka-dev libsimde-dev binutils shellcheck mandoc"
cross='gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static make pkg-config python3'
page='chromium chromium-driver'
package="$build debhelper dpkg-dev lintian rpm rpmlint"
boot='systemd-container mmdebstrap util-linux procps'
what=${1:-build}
case $what in
build | missing) want=$build ;;
check) want=$check ;;
page) want=$page ;;
package) want=$package ;;
boot) want=$boot ;;
cross) want=$cross dir=${2:?"usage: $0 cross DIR"} ;;
*) echo "usage: $0 build|check|missing|page|package|boot|cross DIR" >&2; exit 64 ;;
esac

# The libraries of another architecture, with all that they need, as its apt would choose them; this system's own packages stay as they are.
unpack_cross() {
    libraries='libyaml-dev libjansson-dev libsystemd-dev libcurl4-openssl-dev libssl-dev libcmocka-dev'
    if [ "$(cat "$dir/.made" 2>/dev/null)" = "shlibs $libraries" ]; then return 0; fi
    rm -rf "$dir" "$dir.apt"
    mkdir -p "$dir" "$dir.apt/lists/partial" "$dir.apt/archives/partial"
    apt=$(cd "$dir.apt" && pwd)
    : >"$apt/status"
    set -- -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$apt" -o Dir::State::status="$apt/status" \
        -o Dir::Cache="$apt" -o Dir::Log="$apt" -o APT::Sandbox::User= -o Debug::NoLocking=1
    echo "Unpacking arm64 libraries into $dir"
    apt-get "$@" update
    # shellcheck disable=SC2086  # a list of words
    apt-get "$@" install -y --download-only --no-install-recommends $libraries
    for deb in "$apt"/archives/*.deb; do
        dpkg-deb -x "$deb" "$dir"
        dpkg-deb -I "$deb" shlibs 2>/dev/null || true # which package a program that needs the library depends on
    done >"$apt/shlibs"
    mv "$apt/shlibs" "$dir/.shlibs"
    rm -rf "$apt"
    echo "shlibs $libraries" >"$dir/.made"
}

if ! command -v dpkg-query >/dev/null 2>&1; then
    [ "$what" != cross ] || { echo "This is no Debian: only there can the libraries of another architecture be had." >&2; exit 1; }
    command -v cc >/dev/null 2>&1 && command -v pkg-config >/dev/null 2>&1 &&
        pkg-config --exists yaml-0.1 jansson libsystemd libcurl 'openssl >= 3' && exit 0
    echo "This is no Debian: install a C compiler, make, pkg-config and the development files of libyaml, jansson," >&2
    echo "libsystemd, libcurl and OpenSSL 3 (for the tests also cmocka, simde and python3 with venv), then run make again." >&2
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
if [ "$what" = missing ]; then
    echo "${missing# }"
    exit 0
fi
if [ -z "${missing# }" ]; then
    [ "$what" != cross ] || unpack_cross
    exit 0
fi

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
[ "$what" != cross ] || unpack_cross
