#!/bin/bash
# Makes a running pantheond serve what a file lists, one model a line (examples/models.conf explains the lines). Needs bash and curl.
#
#   examples/deploy.sh [--plan] [--prune] [--socket PATH | --url URL] [FILE]
#
# The models are ad hoc ones: they stay until they are unloaded, or the daemon starts again. So this may be run again at any time, also after it was
# interrupted: what is as listed is not touched. Where a manifest can be edited, it is the better place (docs/manifest.md).
set -uo pipefail

usage() {
    cat <<'EOF'
usage: deploy.sh [--plan] [--prune] [--socket PATH | --url URL] [FILE]

Asks the daemon for each model of FILE (default: models.conf beside this script), and waits until it serves.

  --plan          print what would be done, and do nothing; exit 0 in sync, 2 changes
  --prune         unload ad hoc models that FILE does not list
  --socket PATH   the daemon's admin socket (default: /run/pantheon/admin.sock)
  --url URL       reach it there instead: http://127.0.0.1:8080, or https://; with PANTHEON_API_KEY in the environment under that key

Exit status: 0 done, 3 some models do not serve, 1 error (nothing was changed), 64 usage.
EOF
}

plan='' prune='' socket=/run/pantheon/admin.sock url='' file=''
wrong() { printf 'deploy.sh: %s (--help says more)\n' "$1" >&2; exit 64; }
while [ $# -gt 0 ]; do
    case $1 in
    --plan) plan=1 ;;
    --prune) prune=1 ;;
    --socket | --url)
        [ $# -ge 2 ] || wrong "$1 needs a value"
        if [ "$1" = --url ]; then url=${2%/}; else socket=$2; fi
        shift
        ;;
    -h | --help) usage; exit 0 ;;
    -*) wrong "$1 is no option" ;;
    *) [ -z "$file" ] || wrong "one FILE only"; file=$1 ;;
    esac
    shift
done
case ${PANTHEON_API_KEY:-} in *[[:cntrl:]]*) printf 'deploy.sh: PANTHEON_API_KEY holds a line break or a control character; a key has none\n' >&2; exit 1 ;; esac
file=${file:-$(dirname "$0")/models.conf}
if ! [ -r "$file" ] || [ -d "$file" ]; then printf "deploy.sh: %s cannot be read\n" "$file" >&2; exit 1; fi
folder=$(cd "$(dirname "$file")" && pwd)

# --- the daemon ---

# "text" as JSON has it, and a file of settings for curl.
quoted() {
    local s=${1//\\/\\\\}
    s=${s//\"/\\\"}
    printf '"%s"' "${s//$'\t'/\\t}"
}

# ask PATH [BODY]: sets $status (000: no answer) and $answer.
ask() {
    local to=(--unix-socket "$socket") got
    [ -z "$url" ] || to=()
    case $url in '' | http://127.* | http://localhost | http://localhost:* | 'http://[::1]'*) to+=(--noproxy '*') ;; esac
    # the key through a descriptor: a command line is for all to see
    got=$(curl -sS --globoff -w '\n%{http_code}' "${to[@]}" --config <(
        [ -z "${PANTHEON_API_KEY:-}" ] || printf 'header = %s\n' "$(quoted "Authorization: Bearer $PANTHEON_API_KEY")"
    ) ${2:+-H 'Content-Type: application/json' --data-binary "$2"} "${url:-http://localhost}$1" 2>&1)
    status=${got##*$'\n'} answer=${got%$'\n'*}
}

# What an error answer says, or curl.
reason() {
    local message='"message":"(([^"\\]|\\.)*)"' text
    if [[ $answer =~ $message ]]; then text=${BASH_REMATCH[1]}; else text=$answer; fi
    text=${text//\\\"/\"} text=${text//\\n/ } text=${text//\\\\/\\}
    printf '%s' "${text:-HTTP $status}"
}

# --- the file ---

declare -a names=() bodies=() lines=()
mistakes=0
mistake() { printf '%s:%s: %s\n' "$file" "$1" "$2" >&2; mistakes=$((mistakes + 1)); }

# list_of TEXT: ["a","b"] of a,b.
list_of() {
    local out='' item items
    IFS=, read -ra items <<<"$1"
    for item in "${items[@]}"; do out+=,$(quoted "$item"); done
    printf '[%s]' "${out#,}"
}

# Sets $dies to the names of accelerators, as `pantheon serve --dies` counts them.
find_dies() {
    ask /admin/dies
    dies=()
    local rest=$answer die='"name": ?"([^"]+)", ?"kind": ?"([a-z]+)"(.*)'
    while [[ $rest =~ $die ]]; do
        rest=${BASH_REMATCH[3]}
        [ "${BASH_REMATCH[2]}" = cpu ] || dies+=("${BASH_REMATCH[1]}")
    done
}

# dies_of VALUE: "auto:2", or a list of names; a number is the accelerator of that place.
dies_of() {
    local item out='' items
    case $1 in auto:*) quoted "$1"; return ;; esac
    IFS=, read -ra items <<<"$1"
    for item in "${items[@]}"; do
        case $item in
        *[!0-9]* | '') ;;
        *)
            find_dies
            item=${dies[10#$item]:-$item} # the daemon says that there is no such die
            ;;
        esac
        out+=,$item
    done
    list_of "${out#,}"
}

# value_of KEY VALUE: as JSON. Texts are what must be text whatever it looks like; of the rest, numbers and truths are what they look like.
value_of() {
    local number='^-?(0|[1-9][0-9]*)(\.[0-9]+)?$' group out='' part
    case $1 in
    aliases | source.mirrors) list_of "$2" ;;
    dies) dies_of "$2" ;;
    replicas)
        IFS=, read -ra group <<<"$2"
        for part in "${group[@]}"; do out+=,$(list_of "${part//+/,}"); done
        printf '[%s]' "${out#,}"
        ;;
    chat_template)
        case $2 in auto | /*) quoted "$2" ;; *) quoted "$folder/$2" ;; esac
        ;;
    source.*) quoted "$2" ;;
    *) if [[ $2 =~ $number || $2 == true || $2 == false ]]; then printf '%s' "$2"; else quoted "$2"; fi ;;
    esac
}

# Takes the next key=value of $rest into $key and $value; false when nothing is left or it is wrong.
next_option() {
    local word='^([A-Za-z][A-Za-z0-9_.-]*)=("([^"]*)"|[^[:space:]"]+)([[:space:]]+(.*))?$'
    [ -n "$rest" ] || return 1
    if ! [[ $rest =~ $word ]]; then
        mistake "$1" "'$rest' does not begin with key=value"
        return 1
    fi
    key=${BASH_REMATCH[1]//-/_} value=${BASH_REMATCH[2]} rest=${BASH_REMATCH[5]}
    case $value in \"*) value=${value#\"} value=${value%\"} ;; esac
}

trim() {
    local s=${1#"${1%%[![:space:]]*}"}
    printf '%s' "${s%"${s##*[![:space:]]}"}"
}

read_line() { # read_line NUMBER TEXT
    local name path rest more body key value seen=' ' i
    local -A groups=()
    IFS='|' read -r name path rest more <<<"$2"
    name=$(trim "$name") path=$(trim "$path") rest=$(trim "$rest")
    [ -z "$more" ] || { mistake "$1" "a line is: name | path | key=value ..."; return; }
    if [ -z "$name" ] || [ -z "$path" ]; then mistake "$1" "a line is: name | path | key=value ..."; return; fi
    for i in "${!names[@]}"; do
        [ "${names[i]}" != "$name" ] || { mistake "$1" "'$name' is in line ${lines[i]} already"; return; }
    done
    case $path in /*) ;; *) path=$folder/$path ;; esac
    body="\"name\":$(quoted "$name")" groups[source]="\"path\":$(quoted "$path")"
    while next_option "$1"; do
        case $key=$value in
        kv=k=* | kv=v=*)
            # keys and values apart, as --kv takes them
            rest="kv.${value//,/ kv.} $rest"
            rest=$(trim "$rest")
            continue
            ;;
        kv=*) key=kv.type ;;
        esac
        case $seen in *" $key "*) mistake "$1" "'$key' is there twice"; continue ;; esac
        seen+="$key "
        case $key in
        name | model | source.path) mistake "$1" "'$key' stands before the first two |" ;;
        *.*) groups[${key%%.*}]+="${groups[${key%%.*}]:+,}$(quoted "${key#*.}"):$(value_of "$key" "$value")" ;;
        *) body+=",$(quoted "$key"):$(value_of "$key" "$value")" ;;
        esac
    done
    for key in "${!groups[@]}"; do body+=",$(quoted "$key"):{${groups[$key]}}"; done
    names+=("$name") bodies+=("{$body}") lines+=("$1")
}

n=0
while IFS= read -r line || [ -n "$line" ]; do
    n=$((n + 1)) line=$(trim "${line%$'\r'}")
    case $line in '' | \#*) ;; *) read_line $n "$line" ;; esac
done <"$file"

# --- what would be done ---

ask /admin/models
if [ "$status" != 200 ]; then
    printf 'deploy.sh: %s: %s\n' "${url:-$socket}" "$(reason)" >&2
    exit 1
fi
there=$answer

declare -a gone=()
ad_hoc='"name":"([^"]+)","aliases":\[[^]]*\],"declared":false,"ad_hoc":true(.*)'
while [ -n "$prune" ] && [[ $there =~ $ad_hoc ]]; do
    there=${BASH_REMATCH[2]}
    listed=
    for name in "${names[@]}"; do [ "$name" != "${BASH_REMATCH[1]}" ] || listed=1; done
    [ -n "$listed" ] || gone+=("${BASH_REMATCH[1]}")
done

# Each line is asked about first: nothing is done while one of them is wrong.
declare -a marks=() notes=()
change='"key":"([^"]+)","change":"([a-z]+)","was":"(([^"\\]|\\.)*)","is":"(([^"\\]|\\.)*)"(.*)'
state='"status":"([a-z_]+)","reason":"([^"]*)"'
changes=${#gone[@]}
for i in "${!names[@]}"; do
    ask '/admin/models/load?dry_run=1' "${bodies[i]}"
    if [ "$status" != 200 ]; then
        mistake "${lines[i]}" "$(reason)"
        marks+=('!') notes+=('')
        continue
    fi
    mark='=' note=
    [[ $answer =~ $state ]] || { mistake "${lines[i]}" "the daemon's answer is not understood: $answer"; continue; }
    case ${BASH_REMATCH[1]} in
    absent) mark='+' note=load ;;
    ready | loading | on_demand) note=${BASH_REMATCH[1]} ;;
    *) mark='+' note="load again: ${BASH_REMATCH[1]}${BASH_REMATCH[2]:+, ${BASH_REMATCH[2]}}" ;;
    esac
    rest=$answer
    while [[ $rest =~ $change ]]; do
        rest=${BASH_REMATCH[7]}
        [ "$mark" != = ] || { mark='~' note=; }
        [ "${BASH_REMATCH[2]}" = live ] || mark='-/+'
        note+="${note:+; }${BASH_REMATCH[1]} ${BASH_REMATCH[3]} -> ${BASH_REMATCH[5]}"
    done
    [ "$mark" = = ] || changes=$((changes + 1))
    marks+=("$mark") notes+=("$note")
done
if [ $mistakes -gt 0 ]; then
    printf 'deploy.sh: %d mistakes; nothing was changed.\n' "$mistakes" >&2
    exit 1
fi

for name in "${gone[@]}"; do printf -- '-    %s  unload\n' "$name"; done
for i in "${!names[@]}"; do printf '%-4s %s  %s\n' "${marks[i]}" "${names[i]}" "${notes[i]}"; done
if [ -n "$plan" ]; then
    printf '%d of %d to change.\n' "$changes" $((${#names[@]} + ${#gone[@]}))
    [ "$changes" = 0 ] || exit 2
    exit 0
fi

# --- doing it ---

failed=0
for name in "${gone[@]}"; do # first, so that their memory is free
    ask '/admin/models/unload?wait=1' "{\"name\":$(quoted "$name")}"
    if [ "$status" = 200 ] || [ "$status" = 404 ]; then
        printf '%s: unloaded\n' "$name"
    else
        printf '%s: %s\n' "$name" "$(reason)" >&2
        failed=$((failed + 1))
    fi
done
for i in "${!names[@]}"; do
    begun=$SECONDS
    # one on demand that is as listed is left to its requests
    [ "${marks[i]} ${notes[i]}" != '= on_demand' ] || { printf '%s: on demand\n' "${names[i]}"; continue; }
    ask '/admin/models/load?wait=1' "${bodies[i]}"
    if [ "$status" = 200 ]; then
        printf '%s: serves%s\n' "${names[i]}" "$([ "${marks[i]}" = = ] || printf ' after %d s' $((SECONDS - begun)))"
    else
        printf '%s: %s\n' "${names[i]}" "$(reason)" >&2
        failed=$((failed + 1))
    fi
done
[ $failed = 0 ] || { printf '%d of %d failed.\n' $failed $((${#names[@]} + ${#gone[@]})) >&2; exit 3; }
