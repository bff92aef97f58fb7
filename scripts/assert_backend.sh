#!/bin/sh
# Whether a binary is of the backend that it should be: a build for the cpu alone under a card's name is found before it serves slowly.
#   scripts/assert_backend.sh BIN TOKEN      exit 0; 1 with what it is; 64 usage
set -eu
[ $# = 2 ] || { echo "usage: $0 BIN TOKEN   (such as: $0 ./pantheon cpu)" >&2; exit 64; }
if ! is=$("$1" --backend); then
    echo "$1 does not say which backend it has (pantheon --backend)" >&2
    exit 1
fi
[ "$is" = "$2" ] || { echo "$1 has the backend '$is', not '$2'" >&2; exit 1; }
