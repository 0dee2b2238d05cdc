#!/usr/bin/env bash
# The appliance at work, in half a minute, on one machine: a client, the appliance
# and three backends, each in a network namespace of its own. Nothing outside of
# those namespaces is touched and nothing is left behind, also after Ctrl-C.
# Every step is checked: the exit status is 0 only if all of it was true.
#
# make demo builds what this needs; by hand: examples/demo/demo.sh PATH-OF-SVCCTL PATH-OF-DEMO
set -euo pipefail

name=demo
backends=(backend-1 backend-2 backend-3)
hosts=(gw client "${backends[@]}")
vip=10.96.0.10
. "$(dirname "$0")/common.sh"

# cable HOST ADDRESS GATEWAY PORT connects a host to a port of the appliance.
cable() {
    ip link add "$4" netns "$id-gw" type veth peer name eth0 netns "$id-$1"
    on "$1" ip address add "$2/24" dev eth0
    on "$1" ip link set eth0 up
    on "$1" ip route add default via "$3"
    on gw ip link set "$4" up
}

# network makes the namespaces and the cables of the picture.
network() {
    local n
    namespaces
    on gw ip link add lan type bridge
    on gw ip link set lan up
    on gw ip address add 10.1.2.1/24 dev lan
    on gw sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'
    cable client 203.0.113.2 203.0.113.1 wan
    on gw ip address add 203.0.113.1/24 dev wan
    for n in 1 2 3; do
        cable "backend-$n" "10.1.2.1$n" 10.1.2.1 "port$n"
        on gw ip link set "port$n" master lan
        start "backend-$n" "backend-$n" "$demo" serve -name "backend-$n" -listen "10.1.2.1$n:8080"
    done
}

serve() {
    start svcctl gw "$svcctl" serve --manifests "$run/manifests" --data-dir "$run/data" --socket "$run/svcctl.sock"
    appliance=${pids[svcctl]}
}

ask() { on client "$demo" ask "$@" "http://$vip/"; }
backends_map() { on gw nft list map ip svcctl backends; }
map_lines() { backends_map | grep -F "$vip" | sed 's/^[[:space:]]*/    /; s/elements = { //; s/[, }]*$//'; }
without() { ! backends_map | grep -qF "$1"; }

printf '%s\n' "
    client  203.0.113.2 ──── svcctl ─┬── backend-1  10.1.2.11:8080
                                     ├── backend-2  10.1.2.12:8080
          VIP 10.96.0.10:80          └── backend-3  10.1.2.13:8080"

network
mkdir "$run/manifests"
cp "$here"/../quickstart/*.yaml "$run/manifests/"

step '1. A directory of YAML is served'
command_line "svcctl serve --manifests manifests   # examples/quickstart"
serve
until_true 10 "$svcctl" wait --for ready --timeout 2s --socket "$run/svcctl.sock" || fail 'the appliance did not become ready within 10 s'
grep -m 1 -F programmed "$run/svcctl.log" | indent || true

step '2. Requests of the client are spread over the backends'
command_line "ask -n 300 http://$vip/"
ask -n 300 -expect backend-1,backend-2,backend-3 || fail 'not every backend answered'

step '3. What the kernel holds'
command_line 'nft list map ip svcctl backends'
map_lines || fail "the map has no line of $vip"

step '4. backend-2 is taken out of the YAML'
sed -i '/10\.1\.2\.12/d' "$run/manifests/web.yaml"
edited=$(date +%s%N)
until_true 5 without 10.1.2.12 || fail 'backend-2 is still in the map 5 s after it left the YAML'
say "the map followed $(( ($(date +%s%N) - edited) / 1000000 )) ms after the file was written"
map_lines
command_line "ask -n 300 http://$vip/"
ask -n 300 -expect backend-1,backend-3 || fail 'the traffic did not follow'

step '5. The appliance is killed, and the traffic goes on'
command_line 'kill -9 svcctl'
ask -for 3s -expect backend-1,backend-3 >"$run/asked" 2>&1 &
asking=$!
pids[asking]=$asking
sleep 1
kill -9 "$appliance"
wait "$asking" || { cat "$run/asked"; fail 'connections failed after the appliance was killed'; }
if kill -0 "$appliance" 2>/dev/null; then fail 'the appliance is still alive'; fi
cat "$run/asked"

step 'All of it was true. Now serve a directory of your own:'
say 'sudo bin/svcctl serve --manifests DIR'
