#!/usr/bin/env bash
# A fleet at work, in a minute, on one machine: three boxes that share their objects in an etcd of three
# members, each box with a client, and three backends; all in network namespaces. Nothing outside of those
# is touched and nothing is left behind, also after Ctrl-C. Every step is checked: the exit status is 0
# only if all of it was true.
#
# make demo-fleet builds what this needs; by hand: examples/demo/fleet.sh PATH-OF-SVCCTL PATH-OF-DEMO
set -euo pipefail

name=fleet
hosts=(switch box-1 box-2 box-3 client-1 client-2 client-3 backend-1 backend-2 backend-3)
vip=10.96.0.10
etcd=http://10.1.2.101:2379,http://10.1.2.102:2379,http://10.1.2.103:2379
. "$(dirname "$0")/common.sh"

# plug HOST DEVICE ADDRESS connects a host to the switch.
plug() {
    ip link add "$1" netns "$id-switch" type veth peer name "$2" netns "$id-$1"
    on switch ip link set "$1" master lan up
    on "$1" ip address add "$3" dev "$2"
    on "$1" ip link set "$2" up
}

network() {
    local n
    namespaces
    on switch ip link add lan type bridge
    on switch ip link set lan up
    for n in 1 2 3; do
        on switch ip address add "10.1.2.10$n/24" dev lan
        plug "box-$n" int0 "10.1.2.$n/24"
        on "box-$n" sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'
        ip link add wan netns "$id-box-$n" type veth peer name eth0 netns "$id-client-$n"
        on "box-$n" ip address add "203.0.113.$((4 * n + 1))/30" dev wan
        on "box-$n" ip link set wan up
        on "client-$n" ip address add "203.0.113.$((4 * n + 2))/30" dev eth0
        on "client-$n" ip link set eth0 up
        on "client-$n" ip route add default via "203.0.113.$((4 * n + 1))"
        plug "backend-$n" eth0 "10.1.2.1$n/24"
        start "backend-$n" "backend-$n" "$demo" serve -name "backend-$n" -listen "10.1.2.1$n:8080"
    done
}

member() {
    local n=$1 peers=m1=http://10.1.2.101:2380,m2=http://10.1.2.102:2380,m3=http://10.1.2.103:2380
    start "etcd-$n" switch etcd --name "m$n" --data-dir "$run/etcd-$n" --initial-cluster "$peers" \
        --listen-client-urls "http://10.1.2.10$n:2379" --advertise-client-urls "http://10.1.2.10$n:2379" \
        --listen-peer-urls "http://10.1.2.10$n:2380" --initial-advertise-peer-urls "http://10.1.2.10$n:2380" \
        --auto-compaction-mode periodic --auto-compaction-retention 10m
}
box() {
    start "box-$1" "box-$1" "$svcctl" serve --fleet demo --etcd "$etcd" --node-name "box-$1" --data-dir "$run/data-$1" --socket "$run/box-$1.sock" \
        --cluster-cidr 10.0.0.0/8
    until_true 60 "$svcctl" wait --for ready --timeout 2s --socket "$run/box-$1.sock" || fail "box $1 did not become ready"
}
of_box() { local n=$1; shift; "$svcctl" "$@" --socket "$run/box-$n.sock"; }
fleet() { on switch "$svcctl" fleet "$@" --fleet demo --etcd "$etcd"; }
all_ok() { of_box "$1" get boxes; }
is() { { of_box "$1" status || true; } | grep -q "^Fleet .*$2"; }

# all_ask EXPECT has the client of each box ask, at the same time.
all_ask() {
    local n asking=()
    for n in 1 2 3; do
        on "client-$n" "$demo" ask -n 100 -expect "$1" "http://$vip/" >"$run/asked-$n" 2>&1 &
        asking+=("$!")
    done
    for n in 1 2 3; do wait "${asking[$((n - 1))]}" || { cat "$run/asked-$n"; return 1; }; done
}

# asking SECONDS has the client of each box ask all the time, beside what follows, until asked.
asking() {
    local n
    askers=()
    for n in 1 2 3; do
        on "client-$n" "$demo" ask -for "$1" -expect "$2" "http://$vip/" >"$run/asked-$n" 2>&1 &
        askers+=("$!")
        pids[asking-$n]=$!
    done
}
asked() {
    local n
    for n in 1 2 3; do
        wait "${askers[$((n - 1))]}" || { cat "$run/asked-$n"; fail "connections through box $n failed"; }
        printf '    through box %s:\n' "$n"
        indent <"$run/asked-$n"
    done
}

printf '%s\n' "
    client-1 ── box-1 ─┐            ┌── backend-1
    client-2 ── box-2 ─┼── switch ──┼── backend-2     VIP $vip:80 on every box
    client-3 ── box-3 ─┘     │      └── backend-3
                     etcd: three members"

network
step '1. etcd with three members, and a fleet in it'
for n in 1 2 3; do member "$n"; done
until_true 60 fleet init || fail "etcd did not start"
command_line "svcctl fleet init --fleet demo --etcd $etcd"
fleet status | head -3 | indent

step '2. Three boxes join'
for n in 1 2 3; do box "$n"; done
until_true 60 all_ok 1 || fail 'the boxes are not all OK'
command_line 'svcctl get boxes'
of_box 1 get boxes | indent

step '3. What one box is told, all boxes serve'
command_line 'svcctl apply -f examples/quickstart   # on box-1'
of_box 1 apply -f "$here/../quickstart" --wait | indent
until_true 60 all_ask backend-1,backend-2,backend-3 || fail 'not every client was served by every backend'
cat "$run"/asked-* | indent

step '4. The process of box-2 is killed, and packets go on through it; box-3 takes a backend out meanwhile'
command_line 'kill -9 svcctl                        # on box-2'
end box-2
asking 3s backend-1,backend-2,backend-3
asked
sed '/10\.1\.2\.12/d' "$here/../quickstart/web.yaml" >"$run/web.yaml"
command_line 'svcctl apply -f web.yaml --wait        # on box-3, without backend-2'
of_box 3 apply -f "$run/web.yaml" --wait | indent
box 2
until_true 60 all_ask backend-1,backend-3 || fail 'box-2 did not follow after its start'
cat "$run"/asked-* | indent

step '5. A member of etcd is killed: nothing stops'
asking 8s backend-1,backend-3
command_line 'kill -9 etcd                          # member 1'
end etcd-1
sleep 1
sed -e 's/name: web/name: more/' -e 's/service-name: web/service-name: more/' -e '/clusterIP/d' "$run/web.yaml" >"$run/more.yaml"
command_line 'svcctl apply -f more.yaml             # on box-1'
of_box 1 apply -f "$run/more.yaml" | indent || fail 'a write failed with two of three members'
asked

step '6. A second one is killed: no box can change anything, and every box forwards'
command_line 'kill -9 etcd                          # member 2'
end etcd-2
for n in 1 2 3; do until_true 60 is "$n" CutOff || fail "box $n does not say that it is cut off"; done
{ of_box 1 status || true; } | grep '^Fleet' | indent
if of_box 1 apply -f "$here/../quickstart" >"$run/refused" 2>&1; then fail 'a write without a majority was accepted'; fi
head -c 400 "$run/refused" | indent; echo
asking 3s backend-1,backend-3
asked

step '7. They are back, and so is everything else'
member 1; member 2
for n in 1 2 3; do until_true 60 is "$n" Following || fail "box $n does not follow"; done
until_true 60 of_box 2 apply -f "$here/../quickstart" || fail 'a write was refused'
until_true 60 all_ask backend-1,backend-2,backend-3 || fail 'not every client was served by every backend'
cat "$run"/asked-* | indent
until_true 60 all_ok 3 || fail 'the boxes are not all OK'
of_box 3 get boxes | indent

step 'All of it was true. docs/fleet.md tells how to run one.'
