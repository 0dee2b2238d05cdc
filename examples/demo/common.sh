# What the demos share. Each sets name and hosts, and sources this: it becomes root, has a directory and
# namespaces of its own, and takes both away in the end, also after Ctrl-C, with all programs it has started.
# shellcheck shell=bash disable=SC2034 # some variables are for the demos

if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "demo: network namespaces need root: run this as root, or install sudo" >&2; exit 1; }
    exec sudo -- "$0" "$@"
fi

here=$(cd "$(dirname "$0")" && pwd)
svcctl=$(realpath "${1:-$here/../../bin/svcctl}")
demo=$(realpath "${2:-$here/../../bin/demo}")
PATH=$PATH:/usr/sbin:/sbin

run=$(mktemp -d "/tmp/svcctl-$name.XXXXXX")
id=$name$$ # namespaces of two demos at once must not meet
declare -A pids=()

bold='' dim='' off=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\e[1m' dim=$'\e[2m' off=$'\e[0m'; fi
step() { printf '\n%s%s%s\n' "$bold" "$*" "$off"; }
say() { printf '    %s\n' "$*"; }
command_line() { printf '    %s$ %s%s\n' "$dim" "$*" "$off"; }
indent() { sed 's/^/    /'; }
fail() {
    local log
    printf '\ndemo: %s\n' "$*" >&2
    for log in "$run"/*.log; do
        [ ! -s "$log" ] || { echo "$(basename "$log") ends with:" >&2; tail -n 20 "$log" >&2; }
    done
    exit 1
}

# on HOST COMMAND... runs a command in the namespace of a host.
on() { local host=$1; shift; ip netns exec "$id-$host" "$@"; }

# start NAME HOST COMMAND... runs a command there in the background, as the leader of a process group; its output
# goes to a log of its name.
start() {
    local program=$1 host=$2; shift 2
    setsid ip netns exec "$id-$host" "$@" >>"$run/$program.log" 2>&1 &
    pids[$program]=$!
    disown "$!" # the shell must not report that it was killed
}

# end NAME kills a program that start began, and waits until it has let go of its files.
end() {
    local pid=${pids[$1]:-}
    unset "pids[$1]"
    [ -n "$pid" ] || return 0
    kill -9 -- "-$pid" 2>/dev/null || kill -9 "$pid" 2>/dev/null || return 0
    until_true 20 is_over "$pid" || true
}

# is_over PID: the process is gone, or nobody has asked for its exit code yet.
is_over() { ! grep -qs '^State:[[:space:]]*[^ZX]' "/proc/$1/status"; }

# until_true SECONDS COMMAND... waits until a command succeeds.
until_true() {
    local last=$((SECONDS + $1)); shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$last" ] || return 1
        sleep 0.02
    done
}

cleanup() {
    trap - EXIT INT TERM
    local each
    for each in "${!pids[@]}"; do end "$each"; done
    wait 2>/dev/null || true
    for each in "${hosts[@]}"; do ip netns delete "$id-$each" 2>/dev/null || true; done
    rm -rf "$run"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# namespaces makes those of all hosts.
namespaces() {
    local each
    for each in "${hosts[@]}"; do
        ip netns add "$id-$each"
        on "$each" ip link set lo up
    done
}
